"""What a step costs and what it brings: the speedup, its sensitivities, operations, and when it breaks even."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from sympy import diff

from specnb.errors import SpecnbError
from specnb.theory import algebra
from specnb.theory.algebra import COST, KEPT_SLOPE, OPERATIONS, SLOPE, SPEEDUP, draft, tokens
from specnb.theory.inputs import cost, count, is_exact, positive_cost, probability, profile
from specnb.theory.reading import plain, value_of
from specnb.theory.tokens import expected_tokens


class Sensitivity(NamedTuple):
    """The derivatives of the speedup."""

    alpha: Any
    c: Any
    v: Any


def speedup(alpha: Any, gamma: Any, c: Any, v: Any = 1.0) -> Any:
    """Return how many times faster speculation is than plain decoding: E/(γc + v).

    Parameters
    ----------
    alpha, gamma : as in `expected_tokens`; gamma None takes alpha as one acceptance per position.
    c : cost of one draft step, >= 0, in units of a plain target step.
    v : cost of one verification pass, > 0, in the same units, whatever γ. 1: verifying γ + 1 tokens takes as long as
        decoding one.

    Returns
    -------
    The speedup of one sequence; a float, an array of the shape all broadcast to, or an expression. Raises
    `SpecnbError` where an argument is outside its range. Source: Leviathan et al. 2023, theorem 3.8, there with v = 1.

    >>> round(speedup(0.8, 4, 0.05), 2), round(speedup(0.8, 4, 0.05, v=3.5), 2)
    (2.8, 0.91)
    """
    values = {tokens: _tokens(alpha, gamma), algebra.gamma: _drafts(alpha, gamma)}
    return value_of(SPEEDUP, values | {algebra.c: cost("c", c), algebra.v: positive_cost("v", v)})


def sensitivity(alpha: Any, gamma: Any, c: Any, v: Any = 1.0) -> Sensitivity:
    """Return the derivatives of the speedup by α, c and v.

    Arguments as in `speedup`, with one acceptance for all positions.

    >>> [round(slope, 3) for slope in sensitivity(0.8, 4, 0.05)]
    [5.473, -9.338, -2.334]
    """
    costs = {algebra.gamma: count("gamma", gamma), algebra.c: cost("c", c), algebra.v: positive_cost("v", v)}
    values = {tokens: _tokens(alpha, gamma)} | costs
    by_alpha = value_of(diff(SPEEDUP, tokens), costs) * _slope(alpha, gamma)
    by_costs = (value_of(diff(SPEEDUP, symbol), values) for symbol in (algebra.c, algebra.v))
    return Sensitivity(plain(by_alpha), *by_costs)


def operations_factor(alpha: Any, gamma: Any, c_hat: Any = 0.0) -> Any:
    """Return how many times more arithmetic a token costs than in plain decoding: (γĉ + γ + 1)/E.

    Parameters
    ----------
    alpha, gamma : as in `speedup`.
    c_hat : operations of the draft over those of the target, per token, >= 0. (Not c, which is of time.)

    Source: Leviathan et al. 2023, theorem 3.11.

    >>> round(operations_factor(0.8, 5), 2)
    1.63
    """
    values = {tokens: _tokens(alpha, gamma), algebra.gamma: _drafts(alpha, gamma)}
    return value_of(OPERATIONS, values | {algebra.c_hat: cost("c_hat", c_hat)})


def break_even(gamma: Any, c: Any, v: Any = 1.0) -> Any:
    """Return the least acceptance at which a step is no slower than plain decoding, E >= γc + v.

    gamma, c, v: as in `speedup`, numbers or arrays. For γ = 1 it is c + v − 1. 0 where any draft breaks even, NaN
    where none does, since γc + v is above the ceiling γ + 1.

    >>> round(break_even(1, c=0.05, v=1.2), 6), round(break_even(4, c=0.05, v=3.5), 6)
    (0.25, 0.84882)
    """
    if is_exact([gamma, c, v]):
        raise SpecnbError("break_even solves for numbers; expected gamma, c and v as numbers or arrays")
    gamma, c, v = count("gamma", gamma), cost("c", c), positive_cost("v", v)
    needed = value_of(COST, {algebra.gamma: gamma, algebra.c: c, algebra.v: v})
    low, high = np.zeros(np.shape(needed)), np.ones(np.shape(needed))
    for _ in range(np.finfo(float).nmant + 1):  # E grows with α; each half of the interval is one binary digit
        middle = (low + high) / 2
        enough = expected_tokens(middle, gamma) >= needed
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    least = np.where(needed > gamma + 1, np.nan, np.where(needed <= 1, 0, high))
    return plain(least)


def _tokens(alpha: Any, gamma: Any) -> Any:
    """Return the expected tokens of a finite step."""
    if gamma is None:
        profile(alpha)  # or raise: the limit for γ → ∞ has no cost
    return expected_tokens(alpha, gamma)


def _drafts(alpha: Any, gamma: Any) -> Any:
    return count("gamma", profile(alpha).shape[-1] if gamma is None else gamma)


def _slope(alpha: Any, gamma: Any) -> Any:
    """Return ∂E/∂α; with numbers the derivative of each α^i summed, in which nothing cancels as α → 1."""
    if is_exact([alpha, gamma]):
        return value_of(SLOPE, {algebra.alpha: probability("alpha", alpha), algebra.gamma: count("gamma", gamma)})
    each, drafts = (np.asarray(value)[..., None] for value in (probability("alpha", alpha), count("gamma", gamma)))
    position = np.arange(1, drafts.max(initial=0) + 1)
    slopes = value_of(KEPT_SLOPE, {algebra.alpha: each, draft: position})
    return np.where(position <= drafts, slopes, 0).sum(axis=-1)
