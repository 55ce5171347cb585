"""Tokens per step: their mean, their law and their variance, for one acceptance or one per position."""

from __future__ import annotations

from typing import Any

import numpy as np

from specnb.theory.algebra import TOKENS, TOKENS_IN_FLOATS, TOKENS_WITHOUT_END, VARIANCE, alpha, gamma
from specnb.theory.inputs import count, is_exact, is_profile, probability, profile
from specnb.theory.reading import plain, value_of

_alpha, _gamma = alpha, gamma


def expected_tokens(alpha: Any, gamma: Any = None) -> Any:
    """Return the expected number of tokens that a step emits, its bonus or correction included.

    Parameters
    ----------
    alpha : acceptance in [0, 1]: a number, an array or a SymPy expression. If gamma is None, a sequence or an array
        [..., γ] is one acceptance per position, each given that all drafts before it were accepted.
    gamma : drafts per step, an integer >= 0; broadcasts with alpha. None with one alpha: the limit for γ → ∞.

    Returns
    -------
    (1 − α^(γ+1))/(1 − α), or γ + 1 for α = 1; by position 1 + Σ_i Π_{j<=i} α_j; in the limit 1/(1 − α), infinite for
    α = 1. A float, an array, or an expression where something is SymPy's or a `Fraction`.

    Raises
    ------
    SpecnbError : alpha isn't a probability, gamma isn't an integer >= 0.

    Source: Leviathan et al. 2023, equation 1.

    >>> round(expected_tokens(0.7, 3), 6), round(expected_tokens([0.8, 0.7, 0.5]), 6), round(expected_tokens(0.8), 6)
    (2.533, 2.64, 5.0)
    """
    if gamma is None and is_profile(alpha):
        return plain(1 + profile(alpha).cumprod(axis=-1).sum(axis=-1))
    acceptance = probability("alpha", alpha)
    if gamma is None:
        return value_of(TOKENS_WITHOUT_END, {_alpha: acceptance})
    return value_of(TOKENS, {_alpha: acceptance, _gamma: count("gamma", gamma)}, TOKENS_IN_FLOATS)


def token_law(alpha: Any, gamma: Any = None) -> np.ndarray:
    """Return the law of the tokens of a step: an array [..., γ + 1] whose entry k is P(k + 1 tokens).

    Parameters
    ----------
    alpha, gamma : as in `expected_tokens`, but gamma is needed with one alpha, and is a number. For an array of
        several gammas the last axis is as long as for the largest, with zeros behind.

    >>> token_law(0.5, 2)
    array([0.5 , 0.25, 0.25])
    """
    chances = profile(alpha, gamma)
    sure = np.ones((*chances.shape[:-1], 1), chances.dtype)
    reached = np.concatenate([sure, chances.cumprod(axis=-1)], axis=-1)
    return reached * np.concatenate([1 - chances, sure], axis=-1)


def token_variance(alpha: Any, gamma: Any = None) -> Any:
    """Return the variance of the number of tokens that a step emits.

    Parameters
    ----------
    alpha, gamma : as in `expected_tokens`, but gamma is needed with one alpha.

    Returns
    -------
    For expressions (α − (2γ+1)α^(γ+1)(1−α) − α^(2γ+2))/(1−α)². Numbers are summed over the law, whose terms are all
    positive: in the closed form digits cancel as α → 1.

    >>> round(token_variance(0.8, 5), 6)
    3.864093
    """
    if gamma is not None and not is_profile(alpha) and is_exact([alpha, gamma]):
        return value_of(VARIANCE, {_alpha: probability("alpha", alpha), _gamma: count("gamma", gamma)})
    law, mean = token_law(alpha, gamma), np.asarray(expected_tokens(alpha, gamma))
    emitted = np.arange(1, law.shape[-1] + 1)
    return plain((law * (emitted - mean[..., None]) ** 2).sum(axis=-1))
