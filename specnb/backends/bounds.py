"""The token that a word picks, from sums in floating point, where no error of theirs matters.

The contract's sums are of integers, which a CPU makes slowly. Here they are of float64, with a bound on their error: a
token is certain if it is the same at both ends of the bound. Whatever is doubtful is left to the integers.
"""

from __future__ import annotations

import functools

import numpy as np

BLOCK = 1024  # ids per sum, at most
SUM_ERROR = 2.0**-40
"""Relative error of float64 sums of nonnegative numbers: at most 1023 additions in a block, once in any order and once
in that of the ids, and at most 1023 between blocks, each within 2^-53, make less than half of this."""
TRUNCATION = 2.0**-62
"""What the contract's mass of one id may lie below the float64 value that both start from."""


def search(x, word, relative, absolute, point=-1, most=np.inf):
    """Return the id at a word's place among the cumulative sums of x, or None if an error of these could move it.

    x: float [V], up to 2^20 nonnegative numbers, used up. word: an int, signed or not. relative and absolute: bounds
    of the error of every cumulative sum, the former of the sum of all x, which is less than `most`. point: an id from
    which 1 is taken away, −1 for none.
    """
    block, starts = _blocks(len(x))
    sums = np.add.reduceat(x, starts, dtype=np.float64)
    if 0 <= point < len(x):
        one = min(x[point], 1.0)
        absolute += relative * one  # what is taken away was in the sums
        sums[point // block] -= one
        x[point] -= one
    cumulative = sums.cumsum()
    whole = cumulative.item(-1)
    if not whole < most:
        return None
    threshold = (word % 2**64) * 2.0**-64 * whole
    at = min(int(cumulative.searchsorted(threshold, "right")), len(sums) - 1)
    within = threshold - (cumulative.item(at) - sums.item(at))
    error = 2 * (relative * whole + absolute)  # of the threshold and of a sum
    ends = x[at * block : (at + 1) * block].cumsum(dtype=np.float64)
    first, last = ends.searchsorted((within - error, within + error), "right").tolist()
    return at * block + first if within >= error and first == last < len(ends) else None


def search_rows(x, word, relative, absolute):
    """Return what `search` does for each row of x [R, V] and its word, R ints below 2^64: int64 [R], −1 for None."""
    (R, V), (block, starts) = x.shape, _blocks(x.shape[1])
    rows = np.arange(R)
    sums = np.add.reduceat(x, starts, axis=1, dtype=np.float64)
    cumulative = sums.cumsum(axis=1)
    whole = cumulative[:, -1]
    threshold = np.array(word, np.uint64) * 2.0**-64 * whole
    at = np.minimum((cumulative <= threshold[:, None]).sum(axis=1), len(starts) - 1)
    within = threshold - (cumulative[rows, at] - sums[rows, at])
    error = 2 * (relative * whole + absolute)
    ids = at[:, None] * block + np.arange(block)
    ends = x[rows[:, None], np.minimum(ids, V - 1)].cumsum(axis=1, dtype=np.float64)
    first, last = ((ends <= (within + by)[:, None]).sum(axis=1) for by in (-error, error))
    told = (within >= error) & (first == last) & (last < np.minimum(block, V - at * block))
    return np.where(told, at * block + first, -1)


@functools.cache
def _blocks(V):
    """Return how many of V ids make a block, about as many as there are blocks, and where the blocks start."""
    block = min(BLOCK, 1 << (V.bit_length() + 1) // 2)
    return block, np.arange(0, V, block)
