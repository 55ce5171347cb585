"""Integer sums over a row pair, in any order; the hand-over of a row's splits to the last one; and the pick."""

import triton
import triton.language as tl

from specnb_kernels.arithmetic import (
    INFINITY_BITS,
    high_half,
    larger,
    magnitude,
    residual,
    scaled,
    weight,
)
from specnb_kernels.logits import FACTOR, read

HIGHEST_MASS = tl.constexpr((1 << 31) - (1 << 20))  # of the weights' high halves: then no sum reaches 2^63


@triton.jit
def _tile_sums(p, q, scale, p_id, q_id, p_width, q_width, p_form, q_form, ids, MASKED: tl.constexpr,
               FILTERED: tl.constexpr):  # fmt: skip
    """Return over axis 0 of a tile the sums of the residual's weights, of their high halves, of p's two, and the peak.

    The peak is the largest magnitude's bits: of floats without a sign the bits order as the values do, NaN last.
    Without MASKED all ids lie inside p's row and q_width is a multiple of the tile, so that no mask splits a vector.
    """
    p_v = read(p, ids, p_id, ids < p_width if MASKED else None, p_form, FILTERED)
    own = weight(p_v)
    left = scaled(p_v, scale)
    rest = weight(left)
    if q is not None:
        q_v = read(q, ids, q_id, ids < q_width, q_form, FILTERED)
        rest = weight(residual(left, q_v))
    rest_sum, own_sum = tl.sum(rest, 0), tl.sum(own, 0)
    if p_form is None:
        peak = magnitude(p_v)
        if q is not None:
            peak = larger(peak, magnitude(q_v))
        peak = tl.max(peak.to(tl.int32, bitcast=True), 0)
        return rest_sum, tl.sum(high_half(rest), 0), own_sum, tl.sum(high_half(own), 0), peak
    else:  # formed from logits, no row is too heavy, and all of it is finite or nothing
        none = tl.zeros_like(own_sum)
        return rest_sum, none, own_sum, none, none.to(tl.int32)


@triton.jit
def chunk_sums(p, q, scale, p_id, q_id, p_width, q_width, p_form, q_form, first, end,
               TILE: tl.constexpr, VECTOR: tl.constexpr, ALONG: tl.constexpr, FILTERED: tl.constexpr):  # fmt: skip
    """Return over tiles first .. end - 1 of the row pair the four sums, and whether an element was not finite.

    scale, a float64 or None for 1, multiplies p in the residual. The forms are as in logits.read.
    """
    COLUMNS: tl.constexpr = TILE // VECTOR
    # Axis 0 stays within a thread: neighbouring ids where one 16-byte load can hold them, else ids a column apart,
    # so that neighbouring threads read neighbouring ids.
    element = tl.arange(0, VECTOR)[:, None]
    column = tl.arange(0, COLUMNS)[None, :]
    lane = (column * VECTOR + element) if ALONG else (element * COLUMNS + column)
    rest = tl.zeros((COLUMNS,), tl.int64)
    rest_high = tl.zeros((COLUMNS,), tl.int64)
    own = tl.zeros((COLUMNS,), tl.int64)
    own_high = tl.zeros((COLUMNS,), tl.int64)
    peak = tl.zeros((COLUMNS,), tl.int32)

    q_whole = q_width // TILE * TILE
    whole = tl.where(q_width > 0, tl.minimum(p_width, q_width), p_width) // TILE
    whole = tl.maximum(tl.minimum(whole, end), first)
    # While loops, since the interpreter of Triton 3.6 can't take a range of what newer NumPy computes.
    tile = first
    while tile < whole:
        ids = tile * TILE + lane
        a, b, c, d, m = _tile_sums(p, q, scale, p_id, q_id, p_width, q_whole, p_form, q_form, ids, False, FILTERED)
        rest, rest_high, own, own_high, peak = rest + a, rest_high + b, own + c, own_high + d, tl.maximum(peak, m)
        tile += 1
    while tile < end:
        ids = tile * TILE + lane
        a, b, c, d, m = _tile_sums(p, q, scale, p_id, q_id, p_width, q_width, p_form, q_form, ids, True, FILTERED)
        rest, rest_high, own, own_high, peak = rest + a, rest_high + b, own + c, own_high + d, tl.maximum(peak, m)
        tile += 1
    nonfinite = (tl.max(peak, 0) >= INFINITY_BITS).to(tl.int64)
    if p_form is not None:
        nonfinite = (p_form[FACTOR] != p_form[FACTOR]).to(tl.int64)
        if q is not None:
            nonfinite |= ((q_width > 0) & (q_form[FACTOR] != q_form[FACTOR])).to(tl.int64)
    return tl.sum(rest, 0), tl.sum(rest_high, 0), tl.sum(own, 0), tl.sum(own_high, 0), nonfinite


@triton.jit
def is_last_split(arrivals, splits):
    """Take a ticket, and tell whether all other splits have arrived before and left their sums in memory.

    The barrier brings this block's stores before its ticket; acq_rel brings the others' before what follows.
    """
    tl.debug_barrier()
    ticket = tl.atomic_add(arrivals, 1, sem="acq_rel", scope="gpu")
    return (ticket & (splits - 1)) == splits - 1


@triton.jit
def pick(p, q, scale, p_id, q_id, p_width, q_width, p_form, q_form, drop, fallback, base, target, first, end, V,
         TILE: tl.constexpr, FILTERED: tl.constexpr):  # fmt: skip
    """Return the smallest id of tiles first .. end - 1 at which base + the weights so far exceed target, else V."""
    found = V
    tile = first
    while (found == V) & (tile < end):
        ids = tile * TILE + tl.arange(0, TILE)
        p_v = read(p, ids, p_id, ids < p_width, p_form, FILTERED)
        w = weight(p_v)
        left = scaled(p_v, scale)
        if q is not None:
            q_v = read(q, ids, q_id, ids < q_width, q_form, FILTERED)
            left = residual(left, q_v)
        w = tl.where(fallback, w, weight(left))
        w = tl.where(ids == drop, 0, w)
        found = tl.min(tl.where(base + tl.cumsum(w, 0) > target, ids, V), 0)
        base += tl.sum(w, 0)
        tile += 1
    return found
