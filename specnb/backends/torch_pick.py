"""The token that a word picks from one long row, on a CPU, where floating point tells it for certain.

Everything else is left to the integers of `specnb.backends.torch_mass`, so the tokens are the contract's.
"""

from __future__ import annotations

import torch

from specnb.backends.bounds import SUM_ERROR, TRUNCATION, drawn, search

LONG = 2**13  # ids of a row that repays being looked at alone
FLOAT32_ERROR = 2.0**-24 + SUM_ERROR
"""Relative error of sums of differences that were rounded to float32."""


def certain(p, q, point, scale, word):
    """Return the token that a word picks from the masses of (scale·p − q)+, or None where that is uncertain.

    p [V] and q [V'] (None: 0): nonnegative tensors, q finite. point: an id where q is 1, −1 for none. scale: a number,
    None for 1. word: an int, signed or not. Masses of 1.5 or more in all, and a NaN, are uncertain.
    """
    if scale is None and point < 0 and p.dtype == torch.float32 and (q is None or q.dtype == torch.float32):
        x = p if q is None else _rest(p.clone(), q)  # half the bytes, and what it rounds by seldom matters
        token = search(x.numpy(), word, FLOAT32_ERROR, TRUNCATION * (len(x) + 1), most=1.5)
        if token is not None:
            return token
    x = p.to(torch.float64, copy=True)
    x = _rest(x if scale is None else x.mul_(scale), q)
    return search(x.numpy(), word, SUM_ERROR, TRUNCATION * (len(x) + 1), point, most=1.5)


def _rest(x, q):
    """Return (x − q)+ in the place of x; q may be None."""
    if q is not None:
        x[: len(q)].sub_(q[: len(x)]).clamp_min_(0.0)
    return x


def likely(exponents, word):
    """Return the token that a word picks from a softmax of scaled logits, or None where that is uncertain.

    exponents: float32 [V], at most 0: what the contract takes 2^t of. Its sum of masses cancels, so none is made.
    """
    return drawn(torch.exp2(exponents).numpy(), word)
