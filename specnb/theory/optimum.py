"""The best number of drafts: in closed form for real γ, from which the best integer is one comparison away."""

from __future__ import annotations

from typing import Any

import numpy as np

from specnb.errors import SpecnbError
from specnb.theory import algebra
from specnb.theory.algebra import RULE, STATIONARY
from specnb.theory.inputs import common_shape, cost, is_exact, one_count, positive_cost, probability
from specnb.theory.reading import plain, value_of

NEWTON_STEPS = 6
"""Newton's method on a convex function from above its root, where the start's bound is tight: twice what it needs."""


def optimal_gamma(alpha: Any, c: Any, v: Any = 1.0, max_gamma: int | None = None) -> Any:
    """Return the integer γ >= 0 with the largest speedup E/(γc + v), the least of them if two tie.

    Parameters
    ----------
    alpha, c, v : as in `speedup`; numbers or arrays that broadcast.
    max_gamma : the most drafts allowed. The speedup rises up to the best γ and falls beyond it, so the best of those
        allowed is the lesser of the two.

    Returns
    -------
    An int or an int64 array: the least γ with α^(γ+1)(v + γc) <= c(1 + α + … + α^γ). v is the cost of every pass,
    also at γ = 0; where the speedup at the best γ is below 1, plain decoding is the best.

    Raises
    ------
    SpecnbError : an argument is outside its range, or there is no best γ and max_gamma is None. There is none where
        every further draft helps: c = 0 and α > 0, where the speedup rises to 1/((1 − α)v), or α = 1 and c < v.

    The proof is `best_gamma_proof`.

    >>> optimal_gamma(0.8, c=0.02), optimal_gamma(0.9, c=0.01), optimal_gamma(0.8, c=0, max_gamma=5)
    (11, 24, 5)
    """
    most = np.inf if max_gamma is None else one_count("max_gamma", max_gamma)
    alpha, c, v = _numbers(alpha, c, v)
    real = np.where(alpha * v <= c, 0, _stationary(alpha, c, v))
    best = np.where(np.isfinite(real), np.maximum(np.floor(real), 0), most)
    if np.isinf(best).any():
        _refuse(alpha[np.isinf(best)][0], c[np.isinf(best)][0])
    rises = value_of(RULE, {algebra.alpha: alpha, algebra.gamma: best, algebra.c: c, algebra.v: v}) > 0
    return plain(np.minimum(best + rises, most).astype(np.int64))


def stationary_gamma(alpha: Any, c: Any, v: Any = 1.0) -> Any:
    """Return the real γ° at which the derivative of the speedup by γ is 0; the best integer is next to it.

    With L = −ln α and u = −W₋₁(−e^(−1 − L(v − c)/c)) it is (u − 1)/L − v/c = ln(u)/L − 1, above −1. Where it is
    negative, the best γ is 0.

    Parameters
    ----------
    alpha, c, v : as in `speedup`; 0 < alpha < 1 and 0 < c < v. Of numbers it is infinite at c = 0, and NaN outside.

    >>> round(stationary_gamma(0.8, c=0.02), 4)
    11.0197
    """
    if is_exact([alpha, c, v]):
        named = {algebra.alpha: probability("alpha", alpha), algebra.c: cost("c", c), algebra.v: positive_cost("v", v)}
        return value_of(STATIONARY, named)
    return plain(_stationary(*_numbers(alpha, c, v)))


def _stationary(alpha: np.ndarray, c: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Return γ° from t = u − 1, the root of t − ln(1 + t) = K.

    The argument of W underflows at K = 745, which α = 0.01 and c = 0.005 reach; this equation for it doesn't.
    """
    with np.errstate(all="ignore"):  # 0/0 and ∞ − ∞ outside 0 < α < 1, 0 < c < v
        L = -np.log(alpha)
        K = L * (v - c) / c
        t = K + np.sqrt(2 * K)  # an upper bound: Chatzigeorgiou 2013, arXiv:1601.04895
        for _ in range(NEWTON_STEPS):
            t = t - (t - np.log1p(t) - K) * (1 + t) / t
        return np.where((c == 0) & (alpha > 0) & (alpha < 1), np.inf, np.log1p(t) / L - 1)


def _numbers(alpha: Any, c: Any, v: Any) -> tuple[np.ndarray, ...]:
    found = probability("alpha", alpha), cost("c", c), positive_cost("v", v)
    try:
        numbers = [np.asarray(value, float) for value in found]
    except TypeError:
        raise SpecnbError(
            f"alpha, c, v are {alpha}, {c}, {v}; expected numbers (stationary_gamma is the closed form for symbols)"
        ) from None
    common_shape(dict(zip(("alpha", "c", "v"), numbers, strict=True)))
    return np.broadcast_arrays(*numbers)


def _refuse(alpha: float, c: float) -> None:
    limit = f"the speedup rises to {1 / (1 - alpha):g}/v" if alpha < 1 else "a perfect draft is always worth its cost"
    raise SpecnbError(
        f"no γ is best for alpha = {alpha:g}, c = {c:g}: every further draft helps, and as γ → ∞ {limit}; "
        "expected max_gamma, the most drafts allowed"
    )
