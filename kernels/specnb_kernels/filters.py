"""Top-k and top-p as a threshold, searched for digit by digit over a row's logits: no sort, and no copy of the row."""

import triton
import triton.language as tl

from specnb_kernels.arithmetic import INFINITY, at_least_single
from specnb_kernels.logits import FIXED, FORM, LOWEST, SCALE, THRESHOLD, TOP, exp2
from specnb_kernels.masses import TILE
from specnb_kernels.rows import row_here
from specnb_kernels.sums import is_last_split

DIGIT = tl.constexpr(4)  # bits found per launch
BUCKETS = tl.constexpr(16)
VECTOR = tl.constexpr(8)  # elements of a tile in one thread of four warps
KEY_OF_MINUS_INFINITY = tl.constexpr(0x007FFFFF)
STATE = tl.constexpr(2)  # int64 values that a launch leaves for the next: the key so far, the mass still to find


@triton.jit
def _key(z):
    """Return an unsigned integer that orders as the float32 does; both zeros have one."""
    bits = (z + 0.0).to(tl.int32, bitcast=True)
    return (bits ^ ((bits >> 31) | -(1 << 31))).to(tl.uint32, bitcast=True)


@triton.jit
def _value(key):
    """Return the float32 of a key; −inf for what lies below its key, such as that key without its last digits."""
    key = tl.maximum(key, KEY_OF_MINUS_INFINITY)
    bits = key.to(tl.int32, bitcast=True)
    return (bits ^ ((~bits >> 31) | -(1 << 31))).to(tl.float32, bitcast=True)


@triton.jit
def _largest(tops, tile, end, TILES: tl.constexpr):
    """Return the largest logit of TILES tiles."""
    here = tile + tl.arange(0, TILES)
    return tl.max(tl.load(tops + here, mask=here < end, other=-INFINITY), 0)


@triton.jit
def _masses(rows, stride, width, ids, prefix, shift, limits, MASKED: tl.constexpr, WEIGHED: tl.constexpr):
    """Return over axis 0 of ids the masses of the BUCKETS into which keys that begin with the prefix fall."""
    if MASKED:
        z = tl.load(rows + ids.to(tl.int64) * stride, mask=ids < width, other=-INFINITY)
    else:
        z = tl.load(rows + ids.to(tl.int64) * stride)
    z = at_least_single(z).to(tl.float32)
    key = _key(z)
    inside = (((key ^ prefix) >> shift) >> DIGIT) == 0
    if MASKED:
        inside &= ids < width
    if WEIGHED:
        top, scale, threshold = limits
        inside &= z >= threshold
        w = exp2(tl.maximum((z - top) * scale, LOWEST), FIXED).to(tl.int64)
    else:
        w = tl.zeros_like(ids).to(tl.int64) + 1
    w = tl.where(inside, w, 0)
    digit = ((key >> shift) & (BUCKETS - 1)).to(tl.int32)
    bucket = tl.arange(0, BUCKETS)[:, None, None]
    return tl.sum(tl.where(digit[None, :, :] == bucket, w[None, :, :], 0), 1)


@triton.jit
def _search(rows, stride, width, wanted, tops, buckets, state, arrivals, form, splits, groups_per_split, shift,
            WEIGHED: tl.constexpr, START: tl.constexpr, TILES: tl.constexpr, ALONG: tl.constexpr):  # fmt: skip
    """Find one more digit of the largest key at and above which the mass reaches what is wanted.

    WEIGHED, the mass is trunc(2^((z - top)·scale)·2^44) of what top-k kept, and what is wanted a fraction of it all;
    else it is a count. The elements whose key begins with what was found so far fall into BUCKETS by their next digit.
    """
    limits = tl.load(form + TOP), tl.load(form + SCALE), tl.load(form + THRESHOLD)
    found = tl.full((), 0, tl.int64)
    left = tl.full((), 0, tl.int64)
    if not START:
        found, left = tl.load(state), tl.load(state + 1)
    prefix = found.to(tl.uint32)
    # As in sums.py, the elements of axis 0 stay within a thread, which keeps a sum per bucket.
    COLUMNS: tl.constexpr = TILES * TILE // VECTOR
    element = tl.arange(0, VECTOR)[:, None]
    column = tl.arange(0, COLUMNS)[None, :]
    lane = (column * VECTOR + element) if ALONG else (element * COLUMNS + column)
    bucket = tl.arange(0, BUCKETS)
    split = tl.program_id(1)
    mass = tl.zeros((BUCKETS, COLUMNS), tl.int64)
    tile = split * groups_per_split * TILES
    end = tl.minimum(tile + groups_per_split * TILES, tl.cdiv(width, TILE))
    whole = tl.minimum(end, width // (TILES * TILE) * TILES)
    while tile < whole:
        if _key(_largest(tops, tile, end, TILES)) >= prefix:  # else nothing in these tiles begins so
            mass += _masses(rows, stride, width, tile * TILE + lane, prefix, shift, limits, False, WEIGHED)
        tile += TILES
    while tile < end:
        if _key(_largest(tops, tile, end, TILES)) >= prefix:
            mass += _masses(rows, stride, width, tile * TILE + lane, prefix, shift, limits, True, WEIGHED)
        tile += TILES
    tl.store(buckets + bucket * splits + split, tl.sum(mass, 1))

    if is_last_split(arrivals, splits):
        total = tl.zeros((BUCKETS,), tl.int64)
        s = 0
        while s < splits:
            total += tl.load(buckets + bucket * splits + s, cache_modifier=".cg")
            s += 1
        if START:
            left = wanted
            if WEIGHED:
                left = tl.umulhi(wanted.to(tl.uint64), tl.sum(total, 0).to(tl.uint64)).to(tl.int64)
            left = tl.maximum(left, 1)  # the largest logit is always kept
        above = tl.sum(total, 0) - tl.cumsum(total, 0)
        next_digit = tl.max(tl.where(above + total >= left, bucket, 0), 0)
        found |= next_digit.to(tl.int64) << shift
        tl.store(state, found)
        tl.store(state + 1, left - tl.sum(tl.where(bucket == next_digit, above, 0), 0))
        tl.store(form + THRESHOLD, _value(found.to(tl.uint32)))


@triton.jit
def _wanted(parameter, width, WEIGHED: tl.constexpr):
    """Return what to search for by top_k or top_p, and whether that isn't off."""
    if WEIGHED:
        share = tl.load(parameter)
        on = share < 1.0
        wanted = (tl.where(on, share, 0.5) * (2.0**63)).to(tl.int64) << 1
    else:
        count = tl.load(parameter)
        on = count > 0
        wanted = tl.minimum(count, width).to(tl.int64)
    return wanted, on


INTEGERS = ["G", "z_width", "y_width", "z_row", "z_pos", "y_row", "y_pos", "tile_row", "splits", "groups_per_split",
            "shift"]  # fmt: skip


@triton.jit(do_not_specialize=INTEGERS, do_not_specialize_on_alignment=["z_id", "y_id"])
def thresholds_kernel(draft, lengths, onehot, y, z, y_parameter, z_parameter, tops, buckets, state, arrivals, forms,
                      G: tl.int32, y_width: tl.int32, z_width: tl.int32,
                      y_row: tl.int64, y_pos: tl.int64, y_id, z_row: tl.int64, z_pos: tl.int64, z_id,
                      tile_row: tl.int32, splits: tl.int32, groups_per_split: tl.int32, shift: tl.int32,
                      GAMMA_BLOCK: tl.constexpr, WEIGHED: tl.constexpr, START: tl.constexpr, TILES: tl.constexpr,
                      Y_ALIGN: tl.constexpr, Z_ALIGN: tl.constexpr):  # fmt: skip
    """Narrow a row's threshold by one digit of its key, that at bit `shift`; grid and rows as in rows.py.

    y_parameter and z_parameter are top_k int64 [B], or with WEIGHED top_p float64 [B]; None is off.
    buckets int64 [B, 2G + 1, BUCKETS, splits] and state [B, 2G + 1, STATE] are written in the first launch, START.
    """
    request, _, _, position, row, of_z, used, _ = row_here(draft, lengths, onehot, y, G, GAMMA_BLOCK)
    tops += row * tile_row
    buckets += row * BUCKETS * splits
    state += row * STATE
    forms += row * FORM
    arrivals += row
    if of_z:
        if z_parameter is not None:
            wanted, on = _wanted(z_parameter + request, z_width, WEIGHED)
            if on & used:
                z += tl.multiple_of(request * z_row, Z_ALIGN) + tl.multiple_of(position * z_pos, Z_ALIGN)
                _search(z, z_id, z_width, wanted, tops, buckets, state, arrivals, forms, splits,
                        groups_per_split, shift, WEIGHED, START, TILES, Z_ALIGN > 1)  # fmt: skip
    elif y is not None and y_parameter is not None:
        wanted, on = _wanted(y_parameter + request, y_width, WEIGHED)
        if on & used:
            y += tl.multiple_of(request * y_row, Y_ALIGN) + tl.multiple_of(position * y_pos, Y_ALIGN)
            _search(y, y_id, y_width, wanted, tops, buckets, state, arrivals, forms, splits,
                    groups_per_split, shift, WEIGHED, START, TILES, Y_ALIGN > 1)  # fmt: skip
