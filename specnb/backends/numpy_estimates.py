"""Draws and verdicts told from estimated softmaxes wherever no error of the estimate could change them.

NumPy's own exp2 and float64 sums take a tenth of the time of the contract's polynomial and its integers. What they
leave in doubt is for the contract's arithmetic to decide, so the tokens are the contract's.

The bounds are in units u = 2^-24, a rounding in float32. Both have the same scaled logits t <= 0. The contract's 2^t
is within 1.8 u (every float32 in [−1/2, 1/2] was tried), NumPy's within 4 u; the contract's probability rounds twice
more, once by a factor of the whole row, and its sum, which has t in two parts with two roundings each, is off by
4 u·|t|·ln 2 in the term of that t. The mean of |t| under the softmax is its entropy less the logarithm of its sum:
log2 V at most.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

import numpy as np

from specnb.backends.bounds import NEGLIGIBLE, SUM_ERROR, drawn, search
from specnb.backends.numpy_estimated_filters import drop
from specnb.backends.numpy_logits import LOG2_E

SMALL = 2.0**-60
"""Probability whose relative error `NEGLIGIBLE` doesn't change; a mass of 0 is 0 in the contract as well."""
ROUNDING = 2.0**-40
"""Error of a few operations in float64, with room."""


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


class Parameters(NamedTuple):
    """How the logits of R requests become a distribution, made for `estimate`: arrays [R, 1, 1], None where off."""

    scale: np.ndarray
    greedy: np.ndarray | None
    top_k: np.ndarray | None
    top_p: np.ndarray | None
    min_p: np.ndarray | None
    filtered: bool

    @classmethod
    def of(cls, temperature, *filters):
        """Return it for a temperature [R], and top_k, top_p and min_p, [R] or None."""
        greedy = temperature == 0
        scale = (LOG2_E / np.where(greedy, 1.0, temperature)).astype(np.float32)[:, None, None]
        filters = [values if values is None else values[:, None, None] for values in filters]
        filtered = any(values is not None for values in filters)
        return cls(scale, greedy if greedy.any() else None, *filters, filtered)


def estimate(logits, how, out):
    """Return the softmaxes of logits float32 [R, k, V]; out has room for the masses.

    A row of which a filter leaves in doubt what it keeps is NaN, as a dead row is, so that all of it is in doubt.
    """
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):  # beyond float32 lies −inf, which weighs nothing
        np.subtract(logits, np.maximum.reduce(logits, axis=2, keepdims=True), out=out)
        out *= how.scale
        np.exp2(out, out=out)
        if how.filtered:
            drop(logits, out, how)
    if how.greedy is not None:
        _choose(logits, out, how.greedy)
    return Estimate(out, np.add.reduce(out, axis=2, dtype=np.float64))


def _choose(logits, mass, greedy):
    """Put all mass of greedy rows on the largest logit, the first of several; a dead row is NaN."""
    z = logits[greedy]
    largest = z.argmax(axis=2, keepdims=True)
    alive = np.isfinite(np.take_along_axis(z, largest, 2))
    ones = (np.arange(z.shape[2]) == largest).astype(np.float32)
    mass[greedy] = np.where(alive, ones, np.float32(np.nan))


def error(V):
    """Return a bound of the relative error of a probability: 16 u, and 3 u·log2 V for the mean of |t|."""
    return (16 + 3 * V.bit_length()) * 2.0**-24


def token_verdict(r, draft, q, p, word):
    """Accept a prefix of drafts by u·q(x) < p(x), then pick the final token from (p − q)+ or from p.

    r: the row of the estimates to read. draft: n ids within the vocabulary. q: the estimates [R, 1, V] of each draft's
    row, or None for one-hot drafts. p: the estimate of all columns. word: ints, one for each draft, the last for the
    final token.
    Returns how many are accepted and the final token; None instead of what is in doubt.
    """
    e = 2 * error(p.mass.shape[2])
    for i, x in enumerate(draft):
        u, p_x = (word[i] >> 11) * 2.0**-53, p.at(r, i, x)
        q_x = 1.0 if q is None else q[i].at(r, 0, x)
        if not q_x >= SMALL:  # the contract accepts, and reports, no draft of probability 0
            return None, None
        left = u * q_x
        if left < p_x * (1 - e) - NEGLIGIBLE:
            continue
        if not left >= p_x * (1 + e) + NEGLIGIBLE:
            return None, None
        if q is None:
            return i, search(p.row(r, i), word[-1], SUM_ERROR, e, x)
        return i, _picked(r, i, len(draft), 1.0, q, p, word[-1], e)
    return len(draft), drawn(p.mass[r, len(draft)], word[-1])


def _picked(r, i, n, a, q, p, word, absolute):
    """Return the token that a word picks behind i of n drafts, from (a·p − q)+ or p; None if that is in doubt.

    absolute: bound of the error of sums of (a·p − q)+.
    """
    if i == n:
        return drawn(p.mass[r, i], word)
    return search(_rest(r, i, a, q, p), word, SUM_ERROR, absolute)


def _rest(r, i, a, q, p):
    """Return (a·p − q)+ of column i in row r."""
    rest = p.row(r, i)
    rest *= a
    rest -= q[i].row(r, 0)
    return np.maximum(rest, 0, out=rest)


def block_verdict(r, draft, q, p, word):
    """Accept the longest prefix of drafts whose own test passes, then pick the final token from (a·p − q)+ or from p.

    a is the prefix's weight. q isn't None. Other arguments and results as `token_verdict`. The contract reads the rows
    of all drafts, and reports them, but here the longest prefix comes first and mostly decides.
    """
    n, e = len(draft), 2 * error(p.mass.shape[2])
    drafted = [(p.at(r, i, x), q[i].at(r, 0, x)) for i, x in enumerate(draft)]
    alive = np.isfinite(p.total[r, : n + 1]).all() and all(np.isfinite(one.total[r, 0]) for one in q[:n])
    if not alive or any(0 < p_x < SMALL or q_x < SMALL for p_x, q_x in drafted):
        return None, None
    weights = [*itertools.accumulate(drafted, lambda a, pair: min(1.0, a * pair[0] / pair[1]), initial=1.0)]
    for i in range(n, 0, -1):
        a, relative = weights[i], (i + 1) * e
        if i == n:
            least, most = a * (1 - relative), a * (1 + relative)
        else:
            mass, absolute = _rest(r, i, a, q, p).sum(), relative + e
            least = _share(max(mass - absolute, 0.0), a * (1 - relative))
            most = _share(mass + absolute, min(1.0, a * (1 + relative)))
        u = (word[i - 1] >> 11) * 2.0**-53
        if u < least - ROUNDING:
            return i, _picked(r, i, n, a, q, p, word[-1], (i + 2) * e)
        if not u >= most + ROUNDING:
            return None, None
    return 0, _picked(r, 0, n, 1.0, q, p, word[-1], 2 * e)


def _share(mass, a):
    """Return mass / (mass + 1 − a), the chance to keep a prefix of weight a; 1 if both vanish."""
    whole = mass + (1 - a)
    return mass / whole if whole > 0 else 1.0


def coupled_verdict(r, draft, q, p, word):
    """Accept drafts while they equal the draws from p by their words, an int each, and return the next draw with them.

    q isn't read. Other arguments and results as `token_verdict`.
    """
    for i, x in enumerate([*draft, None]):
        own = drawn(p.mass[r, i], word[i])
        if own is None or own != x:
            return i, own
    raise AssertionError("no token equals None")
