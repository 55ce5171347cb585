"""How long a whole generation takes: the exact law of its steps, and the percentiles of its time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from specnb.errors import SpecnbError
from specnb.theory import algebra
from specnb.theory.algebra import COST
from specnb.theory.inputs import cost, one_count, positive_cost
from specnb.theory.reading import value_of
from specnb.theory.tokens import token_law


def steps_law(tokens: int, alpha: Any, gamma: int | None = None) -> np.ndarray:
    """Return the law of the steps that `tokens` tokens take: an array [tokens + 1] whose entry k is P(k steps).

    Parameters
    ----------
    tokens : tokens to emit, >= 0. The last step may emit more than are needed.
    alpha, gamma : one acceptance and the drafts per step, or acceptances by position and None. Steps are independent.

    Exact, by convolution of `token_law` up to float64's rounding, in time about γ·tokens².

    >>> steps_law(3, 0.5, 1)
    array([0.  , 0.  , 0.75, 0.25])
    """
    wanted, law = one_count("tokens", tokens), _one_law(alpha, gamma)
    so_far, ended = np.zeros(wanted + 1), np.zeros(wanted + 1)
    so_far[0], ended[0] = 1, wanted == 0
    for steps in range(1, wanted + 1):
        after = np.convolve(so_far[:wanted], [0, *law])
        so_far, ended[steps] = after[:wanted], after[wanted:].sum()
    return ended


def latency_percentiles(
    tokens: int, alpha: Any, gamma: int | None, c: float, v: float = 1.0, percentiles: Sequence[float] = (50, 90, 99)
) -> np.ndarray:
    """Return the percentiles of the time that `tokens` tokens take, in units of a plain target step.

    Parameters
    ----------
    tokens, alpha, gamma : as in `steps_law`.
    c, v : as in `speedup`; the time is the number of steps times γc + v. The prompt's own pass isn't counted, and plain
        decoding takes `tokens`.
    percentiles : of what share of generations, in percent, none takes longer; between 0 and 100.

    >>> latency_percentiles(100, 0.8, 4, c=0.05)
    array([36. , 40.8, 44.4])
    """
    shares = np.asarray(percentiles, float) / 100
    if not ((shares > 0) & (shares < 1)).all():
        raise SpecnbError(f"percentiles are {percentiles}; expected numbers between 0 and 100")
    drafts = len(_one_law(alpha, gamma)) - 1
    of_one = value_of(COST, {algebra.gamma: drafts, algebra.c: cost("c", c), algebra.v: positive_cost("v", v)})
    return np.searchsorted(steps_law(tokens, alpha, gamma).cumsum(), shares) * of_one


def _one_law(alpha: Any, gamma: int | None) -> np.ndarray:
    law = token_law(alpha, gamma)
    if law.ndim != 1:
        raise SpecnbError(f"alpha and gamma give laws of shape {law.shape}; expected one law: numbers, or one profile")
    try:
        return law.astype(float)
    except TypeError:
        raise SpecnbError(f"alpha is {alpha}; expected numbers") from None
