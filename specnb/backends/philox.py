"""Random words and 128-bit products in plain Python: the readable form, and the fastest for a few on a CPU."""

from __future__ import annotations

import functools
from typing import Any

FEW = 64
"""Up to so many words on a CPU, Python's integers are faster than arrays."""

_LOW32 = 0xFFFFFFFF


def philox_word(seed: int, position: int, index: int, purpose: int, stream: int) -> int:
    """Return the 64-bit word of Philox4x32-10 under one key and counter (Salmon et al. 2011).

    >>> hex(philox_word(0, 0, 0, 0, 0))
    '0x6627e8d5e169c58d'
    """
    c0, c1, c2, c3 = position & _LOW32, index & _LOW32, purpose & _LOW32, stream & _LOW32
    for key0, key1 in _round_keys(seed):
        product0, product1 = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0, c2 = product1 >> 32 ^ c1 ^ key0, product0 >> 32 ^ c3 ^ key1
        c1, c3 = product1 & _LOW32, product0 & _LOW32
    return c0 << 32 | c1


@functools.lru_cache(1024)
def _round_keys(seed: int) -> list[tuple[int, int]]:
    """Return the two keys of each of the ten rounds."""
    key0, key1 = seed & _LOW32, seed >> 32
    return [(key0 + i * 0x9E3779B9 & _LOW32, key1 + i * 0xBB67AE85 & _LOW32) for i in range(10)]


def few_words(seed: Any, position: Any, counters: list[tuple[int, int]], batch: int, stream: Any = None) -> list[int]:
    """Return a word for each of `batch` requests and each (index, purpose), request by request.

    seed, position: an int, or an array or tensor [batch]. One seed numbers its requests by stream: 0 …, or int64
    [batch].
    """
    keys, starts = _values(seed, batch), _values(position, batch)
    streams = (range(batch) if stream is None else stream.tolist()) if isinstance(seed, int) else [0] * batch
    rows = zip(keys, starts, streams, strict=True)
    return [philox_word(key, start, *pair, stream) for key, start, stream in rows for pair in counters]


def few_high_products(a: list[int], b: list[int]) -> list[int]:
    """Return the high 64 bits of each product of unsigned 64-bit integers."""
    return [x * y >> 64 for x, y in zip(a, b, strict=True)]


def _values(value: Any, batch: int) -> list[int]:
    return [value] * batch if isinstance(value, int) else value.tolist()
