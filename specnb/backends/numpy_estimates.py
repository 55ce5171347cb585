"""Draws and verdicts told from estimated softmaxes wherever no error of the estimate could change them.

NumPy's own exp2 and float64 sums take a tenth of the time of the contract's polynomial and its integers. What they
leave in doubt is for the contract's arithmetic to decide, so the tokens are the contract's.

The bounds are in units u = 2^-24, a rounding in float32. Both have the same scaled logits t <= 0. The contract's 2^t
is within 1.8 u (every float32 in [−1/2, 1/2] was tried), NumPy's within 4 u; the contract's probability rounds twice
more, and its sum, which has t in two parts with two roundings each, is off by 4 u·|t|·ln 2 in the term of that t. The
mean of |t| under the softmax is its entropy less the logarithm of its sum: log2 V at most.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from specnb.backends.bounds import SUM_ERROR, TRUNCATION, search

MASS_ERROR = 2.0**-21
"""Relative error of one mass, apart from a factor common to the row: 1.8 u + 4 u, and 1 u for the product."""
NEGLIGIBLE = 2.0**-90
"""Absolute error of a mass or a probability: the contract has 0 below 2^-100 of the largest, float32 below 2^-149."""


class Estimate(NamedTuple):
    """Softmaxes before their division: masses 2^t, float32 [R, k, V], and sums, float64 [R, k]; NaN in a dead row."""

    mass: np.ndarray
    total: np.ndarray

    def at(self, r, i, token):
        """Return the probability of a token in column i of row r."""
        return self.mass[r, i, token].item() / self.total[r, i].item()

    def row(self, r, i):
        """Return the probabilities of that column, float64 [V]."""
        return np.multiply(self.mass[r, i], 1 / self.total[r, i], dtype=np.float64)


def estimate(logits, scale, out):
    """Return the softmaxes of logits float32 [R, k, V].

    scale: log2(e)/T, float32 [R, 1, 1]. out: room for the masses.
    """
    with np.errstate(over="ignore", invalid="ignore"):  # beyond float32 lies −inf, which weighs nothing
        np.subtract(logits, np.maximum.reduce(logits, axis=2, keepdims=True), out=out)
        out *= scale
        np.exp2(out, out=out)
    return Estimate(out, np.add.reduce(out, axis=2, dtype=np.float64))


def error(V):
    """Return a bound of the relative error of a probability: 16 u, and 3 u·log2 V for the mean of |t|."""
    return (16 + 3 * V.bit_length()) * 2.0**-24


def drawn(mass, word):
    """Return the token that a word, an int, picks from masses [V], or None if that is in doubt."""
    V = len(mass)
    return search(mass, word, MASS_ERROR + TRUNCATION * (V + 1), NEGLIGIBLE * V)


def judged(r, draft, q, p, word):
    """Accept a prefix of drafts by u·q(x) < p(x), then pick the final token from (p − q)+ or from p.

    r: the row of the estimates to read. draft: n ids within the vocabulary. q: the estimates [R, 1, V] of each draft's
    row, or None for one-hot drafts. p: the estimate of all columns. word: ints, one for each draft, the last for the
    final token.
    Returns how many are accepted and the final token; None instead of what is in doubt.
    """
    e = 2 * error(p.mass.shape[2])
    for i, x in enumerate(draft):
        u, p_x = (word[i] >> 11) * 2.0**-53, p.at(r, i, x)
        left = u if q is None else u * q[i].at(r, 0, x)
        if left < p_x * (1 - e) - NEGLIGIBLE:
            continue
        return (i, _corrected(r, i, x, q, p, word[-1])) if left >= p_x * (1 + e) + NEGLIGIBLE else (None, None)
    return len(draft), drawn(p.mass[r, len(draft)], word[-1])


def _corrected(r, i, x, q, p, word):
    """Return the token that a word picks from (p − q)+ of column i in row r, or None if that is in doubt."""
    rest, V = p.row(r, i), p.mass.shape[2]
    absolute = error(V) + TRUNCATION * (V + 1)
    if q is None:
        return search(rest, word, SUM_ERROR, absolute, x)
    rest -= q[i].row(r, 0)
    return search(np.maximum(rest, 0, out=rest), word, SUM_ERROR, 2 * absolute)


def coupled(r, draft, p, word):
    """Accept drafts while they equal the draws from p by their words, an int each, and return the next draw with them.

    Other arguments and results as `judged`.
    """
    for i, x in enumerate([*draft, None]):
        own = drawn(p.mass[r, i], word[i])
        if own is None or own != x:
            return i, own
    raise AssertionError("no token equals None")
