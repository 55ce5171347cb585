"""Random words and 128-bit products in NumPy."""

from __future__ import annotations

import numpy as np

from specnb.backends.philox import FEW, few_high_products, few_words

DRAFTING, ACCEPTING, FINAL, OWN = 0, 1, 2, 3
"""Purposes of a random word: no word serves two of them. OWN belongs to a position, whoever draws there."""

_LOW32 = np.uint64(0xFFFFFFFF)
_SHIFT32 = np.uint64(32)


def words(seed, position, counters, B, stream=None):
    """Return the 64-bit random words [B, n] of B requests, for n pairs (index, purpose).

    seed and position are ints or int64 [B]; one seed for a batch numbers its rows by stream, seeds have stream 0.
    stream: int64 [B], the numbers of rows that are some of a batch; None numbers them from 0.
    """
    if B * len(counters) <= FEW:
        return np.array(few_words(seed, position, counters, B, stream), np.uint64).reshape(B, len(counters))
    stream = (np.arange(B) if stream is None else stream)[:, None] if np.ndim(seed) == 0 else 0
    seed, position = (np.broadcast_to(a, B)[:, None] for a in (seed, position))
    index, purpose = np.array(counters).T
    return philox(seed, position, index, purpose, stream)


def philox(seed, position, index, purpose, stream):
    """Return the words of Philox4x32-10 (Salmon et al. 2011), one per broadcast element.

    seed: the key, 0 <= seed < 2^63; the counter is (position mod 2^32, index, purpose, stream).
    """
    counters = [np.asarray(word).astype(np.uint64) & _LOW32 for word in (position, index, purpose, stream)]
    c0, c1, c2, c3 = np.broadcast_arrays(*counters)
    seed = np.asarray(seed).astype(np.uint64)
    key0, key1 = seed & _LOW32, seed >> _SHIFT32
    for _ in range(10):
        product0, product1 = c0 * np.uint64(0xD2511F53), c2 * np.uint64(0xCD9E8D57)
        c0, c2 = (product1 >> _SHIFT32) ^ c1 ^ key0, (product0 >> _SHIFT32) ^ c3 ^ key1
        c1, c3 = product1 & _LOW32, product0 & _LOW32
        key0, key1 = (key0 + np.uint64(0x9E3779B9)) & _LOW32, (key1 + np.uint64(0xBB67AE85)) & _LOW32
    return c0 << _SHIFT32 | c1


def multiply_high(a, b):
    """Return the high 64 bits of the 128-bit products of unsigned 64-bit integers [B]."""
    if len(a) <= FEW:
        return np.array(few_high_products(a.tolist(), b.tolist()), np.uint64)
    a0, a1, b0, b1 = a & _LOW32, a >> _SHIFT32, b & _LOW32, b >> _SHIFT32
    middle = a1 * b0 + (a0 * b0 >> _SHIFT32)
    carry = (middle & _LOW32) + a0 * b1
    return a1 * b1 + (middle >> _SHIFT32) + (carry >> _SHIFT32)
