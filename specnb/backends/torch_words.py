"""Random words and 128-bit products in PyTorch, as int64 bit patterns: it has no arithmetic on uint64."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from specnb.backends.philox import FEW, few_high_products, few_words

_LOW32 = 0xFFFFFFFF


def on_cpu(device):
    """Tell whether reading a value costs nothing; elsewhere it would wait for all work that was launched."""
    return device.type == "cpu"


def words(seed, position, counters, B, device):
    """Return the random words of B requests as int64 bit patterns [B, n], for n pairs (index, purpose).

    seed and position are ints or int64 [B]; one seed for a batch numbers its rows by stream, seeds have stream 0.
    """
    if on_cpu(device) and B * len(counters) <= FEW:
        few = np.array(few_words(seed, position, counters, B), np.uint64).view(np.int64)
        return torch.from_numpy(few.reshape(B, len(counters)))
    row = torch.arange(B, device=device)[:, None]
    key, stream = (seed[:, None], row * 0) if isinstance(seed, Tensor) else (row * 0 + seed, row)
    start = position[:, None] if isinstance(position, Tensor) else row * 0 + position
    # torch.tensor copies from the host and waits; a stack of filled scalars doesn't.
    columns = zip(*counters, strict=True)
    index, purpose = (torch.stack([torch.full((), c, device=device) for c in column]) for column in columns)
    return philox(*torch.broadcast_tensors(key, start, index, purpose, stream))


def philox(seed, position, index, purpose, stream):
    """Return Philox4x32-10 words as int64 bit patterns, of int64 tensors of one shape."""
    c0, c1, c2, c3 = (c & _LOW32 for c in (position, index, purpose, stream))
    even, odd = torch.stack((c0, c2)), torch.stack((c1, c3))
    shape = (2,) + (1,) * seed.ndim
    factors = _two_constants(0xD2511F53, 0xCD9E8D57, seed.device).view(shape)
    weyl = _two_constants(0x9E3779B9, 0xBB67AE85, seed.device).view(shape)
    key = torch.stack((seed & _LOW32, seed >> 32))
    for _ in range(10):
        product = even * factors
        even = (product >> 32 & _LOW32).flip(0) ^ odd ^ key
        odd = (product & _LOW32).flip(0)
        key = (key + weyl) & _LOW32
    return even[0] << 32 | odd[0]


def _two_constants(a, b, device):
    return torch.arange(2, device=device) * (b - a) + a


def multiply_high(a, b):
    """Return the high 64 bits of a·b, a an unsigned 64-bit pattern, 0 <= b < 2^63."""
    if on_cpu(a.device) and a.numel() <= FEW:
        unsigned = [x & 2**64 - 1 for x in a.flatten().tolist()]
        products = few_high_products(unsigned, b.flatten().tolist())
        return torch.tensor(products, dtype=torch.int64, device=a.device).view(a.shape)
    a0, a1, b0, b1 = a & _LOW32, a >> 32 & _LOW32, b & _LOW32, b >> 32
    middle = a1 * b0 + ((a0 * b0) >> 32 & _LOW32)
    carry = (middle & _LOW32) + a0 * b1
    return a1 * b1 + (middle >> 32 & _LOW32) + (carry >> 32 & _LOW32)
