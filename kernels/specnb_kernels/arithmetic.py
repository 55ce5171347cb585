"""The arithmetic of contract version 1 as device functions: random words, uniforms, integer weights."""

import triton
import triton.language as tl

GRID = tl.constexpr(2.0**53)  # uniforms are multiples of 1/GRID
UNIT = tl.constexpr(2.0**62)  # the integer weight of probability 1
INFINITY = tl.constexpr(float("inf"))
INFINITY_BITS = tl.constexpr(0x7F800000)  # of a float32


@triton.jit
def word(seed, stream, position, index, purpose):
    """Return the 64-bit Philox4x32-10 words of counters (position, index, purpose, stream); index is a block."""
    blank = tl.zeros_like(index).to(tl.int64)
    high, low, _, _ = tl.philox(
        seed,
        ((blank + position) & 0xFFFFFFFF).to(tl.uint32),
        index.to(tl.uint32),
        (blank + purpose).to(tl.uint32),
        (blank + stream).to(tl.uint32),
    )
    return (high.to(tl.uint64) << 32) | low.to(tl.uint64)


@triton.jit
def on_grid(u):
    """Return trunc(u * 2^53) clamped to 0 .. 2^53 - 1 (0 for NaN), and whether u was outside [0, 1)."""
    inside = (u >= 0.0) & (u < 1.0)
    steps = (tl.where(inside, u, 0.0) * GRID).to(tl.int64)
    return tl.where(u >= 1.0, (1 << 53) - 1, steps), inside == 0


@triton.jit
def at_least_single(x):
    """Return 16-bit floats as float32, exactly, and wider ones as they are."""
    if x.dtype == tl.bfloat16:  # by its bits: the interpreter's own conversion loses subnormals
        return (x.to(tl.int16, bitcast=True).to(tl.int32) << 16).to(tl.float32, bitcast=True)
    elif x.dtype.primitive_bitwidth == 16:
        return x.to(tl.float32)
    else:
        return x


@triton.jit
def weight(x):
    """Return trunc(x * 2^62) where 0 < x < 2, else 0 (a NaN weighs nothing), for float32 or float64.

    Both lead bits of a float in [0, 2) are 0, and of no other: one test of the bits replaces two comparisons of
    floats. The product is exact in either type.
    """
    if x.dtype == tl.float64:
        lead = x.to(tl.int64, bitcast=True).to(tl.uint64) >> 62
    else:
        lead = x.to(tl.int32, bitcast=True).to(tl.uint32) >> 30
    return (tl.where(lead == 0, x, 0.0) * UNIT).to(tl.int64)


@triton.jit
def high_half(w):
    """Return w >> 32 of a weight; by the logical shift, which needs no sign."""
    return (w.to(tl.uint64) >> 32).to(tl.int64)


@triton.jit
def scaled(p, scale):
    """Return scale·p in float64, or p as it is where scale is None."""
    if scale is None:
        return p
    else:
        return p.to(tl.float64) * scale


@triton.jit
def residual(p, q):
    """Return p - q where q is positive, else p, in float64."""
    return p.to(tl.float64) - tl.where(q > 0.0, q, 0.0).to(tl.float64)


@triton.jit
def magnitude(x):
    """Return |x| in float32 for a float32, and for a float64 an infinity or 0: not finite exactly if x isn't."""
    if x.dtype == tl.float64:
        return tl.where(tl.abs(x) < INFINITY, 0.0, INFINITY).to(tl.float32)
    else:
        return tl.abs(x)


@triton.jit
def larger(a, b):
    """Return the larger float, or a NaN if there is one."""
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)
