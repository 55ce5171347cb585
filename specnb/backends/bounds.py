"""The token that a word picks, from sums in floating point, where no error of theirs matters.

The contract's sums are of integers, which a CPU makes slowly. Here they are of float64, with a bound on their error: a
token is certain if it is the same at both ends of the bound. Whatever is doubtful is left to the integers.
"""

from __future__ import annotations

import functools

import numpy as np

CHUNK = 1024  # ids per sum, at most
SUM_ERROR = 2.0**-40
"""Relative error of float64 sums of nonnegative numbers: at most 1023 additions in a chunk, once in any order and once
in that of the ids, and at most 1023 between chunks, each within 2^-53, make less than half of this."""
MASS_ERROR = 2.0**-21
"""Relative error of a library's 2^t for the contract's masses, apart from a factor common to a row.

The contract's polynomial is within 1.8 roundings of float32 (every value in [−1/2, 1/2] was tried), and the product
that makes a mass of it is one more. Of the eight that leaves five to the library: NumPy and PyTorch take one or two.
"""
NEGLIGIBLE = 2.0**-90
"""Absolute error of a mass or a probability: the contract has 0 below 2^-100 of the largest, float32 below 2^-149."""
TRUNCATION = 2.0**-62
"""What the contract's mass of one id may lie below the float64 value that both start from."""

FEW = 4
"""Rows that are drawn from one by one in less time than in one call."""


def drawn(mass, word):
    """Return the token that a word, an int, picks from masses 2^t [V], or None if that is in doubt."""
    return search(mass, word, *_errors(len(mass)))


def all_drawn(mass, word):
    """Return the tokens that words, R ints, pick from masses [R, V], int64 [R]: −1 where that is in doubt."""
    if len(mass) > FEW:
        return search_rows(mass, word, *_errors(mass.shape[1]))
    tokens = (drawn(row, one) for row, one in zip(mass, word, strict=True))
    return np.array([-1 if token is None else token for token in tokens])


def _errors(V):
    """Return the relative and the absolute error of sums of V masses."""
    return MASS_ERROR + TRUNCATION * (V + 1), NEGLIGIBLE * V


def search(x, word, relative, absolute, point=-1, most=np.inf):
    """Return the id at a word's place among the cumulative sums of x, or None if an error of these could move it.

    x: float [V], up to 2^20 nonnegative numbers. word: an int, signed or not. relative and absolute: bounds of the
    error of every cumulative sum, the former as a share of the whole. point: an id from which 1 is taken away, in x
    itself; −1 for none. most: None is returned unless the whole is less.
    """
    chunk, starts = _chunks(len(x))
    sums = np.add.reduceat(x, starts, dtype=np.float64)
    if 0 <= point < len(x):
        one = min(x[point], 1.0)
        absolute += relative * one  # what is taken away was in the sums
        sums[point // chunk] -= one
        x[point] -= one
    cumulative = sums.cumsum()
    whole = cumulative.item(-1)
    if not whole < most:
        return None
    threshold = (word % 2**64) * 2.0**-64 * whole
    at = min(int(cumulative.searchsorted(threshold, "right")), len(sums) - 1)
    within = threshold - (cumulative.item(at) - sums.item(at))
    error = 2 * (relative * whole + absolute)  # of the threshold and of a sum
    ends = x[at * chunk : (at + 1) * chunk].cumsum(dtype=np.float64)
    first, last = ends.searchsorted((within - error, within + error), "right").tolist()
    return at * chunk + first if within >= error and first == last < len(ends) else None


def search_rows(x, word, relative, absolute):
    """Return what `search` does, without point and most, for rows x [R, V] and R words below 2^64: −1 for None."""
    (R, V), (chunk, starts) = x.shape, _chunks(x.shape[1])
    rows = np.arange(R)
    sums = np.add.reduceat(x, starts, axis=1, dtype=np.float64)
    cumulative = sums.cumsum(axis=1)
    whole = cumulative[:, -1]
    threshold = np.array(word, np.uint64) * 2.0**-64 * whole
    at = np.minimum((cumulative <= threshold[:, None]).sum(axis=1), len(starts) - 1)
    within = threshold - (cumulative[rows, at] - sums[rows, at])
    error = 2 * (relative * whole + absolute)
    ids = at[:, None] * chunk + np.arange(chunk)
    ends = x[rows[:, None], np.minimum(ids, V - 1)].cumsum(axis=1, dtype=np.float64)
    first, last = ((ends <= (within + by)[:, None]).sum(axis=1) for by in (-error, error))
    told = (within >= error) & (first == last) & (last < np.minimum(chunk, V - at * chunk))
    return np.where(told, at * chunk + first, -1)


@functools.cache
def _chunks(V):
    """Return how many of V ids make a chunk, about as many as there are chunks, and where they start."""
    chunk = min(CHUNK, 1 << (V.bit_length() + 1) // 2)
    return chunk, np.arange(0, V, chunk)
