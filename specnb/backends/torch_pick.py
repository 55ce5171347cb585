"""The token that a word picks from one long row, on a CPU, by sums in floating point where no error of theirs matters.

The contract's sums are of integers, which a CPU makes slowly. Here they are of float64, with a bound on their error:
a token is certain if it is the same at both ends of the bound. Everything else is left to the integers of
`specnb.backends.torch_mass`, which decide in every doubtful case, so the tokens are the contract's.
"""

from __future__ import annotations

import numpy as np
import torch

BLOCK = 1024  # ids per sum
LONG = 2**13  # ids of a row that repays being looked at alone
SUM_ERROR = 2.0**-40
"""Relative error of float64 sums of nonnegative numbers: at most 1023 additions in a block, once in any order and once
in that of the ids, and at most 1023 between blocks, each within 2^-53, make less than half of this."""
TRUNCATION = 2.0**-62
"""What the contract's mass of one id may lie below the float64 value that both start from."""
EXP2_ERROR = 2.0**-21
"""Relative error of `torch.exp2` for the contract's masses, which are made by a polynomial within 1.0e-7 and one
product within 2^-24: that leaves five units in the last place for `torch.exp2`, where about one was measured."""


def certain(p, q, point, scale, word):
    """Return the token that a word picks from the masses of (scale·p − q)+, or None where that is uncertain.

    p [V] and q [V'] (None: 0): nonnegative tensors, q finite. point: an id where q is 1, −1 for none. scale: a number,
    None for 1. word: an int, signed or not. Masses of 1.5 or more in all, and a NaN, are uncertain.
    """
    x = p.to(torch.float64, copy=True)
    if scale is not None:
        x.mul_(scale)
    if q is not None:
        x[: len(q)].sub_(q[: len(x)].double()).clamp_min_(0.0)
    return _search(x.numpy(), word, SUM_ERROR, TRUNCATION * (len(x) + 1), point, most=1.5)


def likely(exponents, word):
    """Return the token that a word picks from a softmax of scaled logits, or None where that is uncertain.

    exponents: float32 [V], at most 0: what the contract takes 2^t of. Its sum of masses cancels, so none is made.
    """
    x = torch.exp2(exponents).double().numpy()
    return _search(x, word, EXP2_ERROR + TRUNCATION * (len(x) + 1), 2.0**-100 * len(x))  # below 2^-100 it has 0


def _search(x, word, relative, absolute, point=-1, most=np.inf):
    """Return the id at a word's place among the cumulative sums of x [V], if no error of these could move it.

    relative and absolute: bounds of the error of every cumulative sum, the former of the sum of all x, which is less
    than `most`.
    """
    sums = np.add.reduceat(x, np.arange(0, len(x), BLOCK))
    if 0 <= point < len(x):
        one = min(x[point], 1.0)
        absolute += relative * one  # what is taken away was in the sums
        sums[point // BLOCK] -= one
        x[point] -= one
    cumulative = sums.cumsum()
    if not cumulative[-1] < most:
        return None
    threshold = (word % 2**64) * 2.0**-64 * cumulative[-1]
    block = min(int(cumulative.searchsorted(threshold, "right")), len(sums) - 1)
    within = threshold - (cumulative[block] - sums[block])
    error = 2 * (relative * cumulative[-1] + absolute)  # of the threshold and of a sum
    ends = x[block * BLOCK : (block + 1) * BLOCK].cumsum()
    first, last = ends.searchsorted([within - error, within + error], "right").tolist()
    return block * BLOCK + first if within >= error and first == last < len(ends) else None
