"""Launch 1 from logits: each row's largest logit and integer mass, in tiles that are part of the contract."""

import triton
import triton.language as tl

from specnb_kernels.arithmetic import INFINITY, at_least_single, larger
from specnb_kernels.early import may_decide, tell_rejection
from specnb_kernels.logits import (
    FACTOR,
    FIRST,
    FIXED,
    FORM,
    LEAST,
    LOG2_E,
    LOWEST,
    MIN_P,
    SCALE,
    THRESHOLD,
    TOP,
    exp2,
    relative,
)
from specnb_kernels.rows import row_here
from specnb_kernels.sums import is_last_split

TILE = tl.constexpr(1024)  # ids whose mass is one integer sum; part of the contract
MAX_TILES = tl.constexpr(256)  # of a row of 2^18 ids


@triton.jit
def _halves(x, A: tl.constexpr, B: tl.constexpr):
    """Return the larger of neighbours in x [A, B], or a NaN if one is."""
    even, odd = tl.split(tl.reshape(x, (A, B // 2, 2)))
    return larger(even, odd)


@triton.jit
def _tops(z, TILES: tl.constexpr, VECTOR: tl.constexpr):
    """Return the largest of each tile of z [TILES, TILE], infinite where one is a NaN.

    As long as neighbours lie in one thread, a NaN is carried along at no cost; behind that, looked for.
    """
    if VECTOR >= 2:
        z = _halves(z, TILES, TILE)
    if VECTOR >= 4:
        z = _halves(z, TILES, TILE // 2)
    if VECTOR >= 8:
        z = _halves(z, TILES, TILE // 4)
    bad = tl.max((z != z).to(tl.int32), 1)
    return tl.where(bad > 0, INFINITY, tl.max(z, 1))


@triton.jit
def _tiles(rows, stride, width, tile, limits, scale, tops, sums,
           MASKED: tl.constexpr, FILTERED: tl.constexpr, TILES: tl.constexpr, VECTOR: tl.constexpr):  # fmt: skip
    """Store the largest logit and the mass of TILES tiles from this one on; limits are the filters' of the row."""
    here = tile + tl.arange(0, TILES)
    ids = here[:, None] * TILE + tl.arange(0, TILE)[None, :]
    if MASKED:
        z = at_least_single(tl.load(rows + ids.to(tl.int64) * stride, mask=ids < width, other=-INFINITY))
    else:
        z = at_least_single(tl.load(rows + ids.to(tl.int64) * stride))
    z = z.to(tl.float32)
    if FILTERED:
        keep = z >= limits[1]
        if FILTERED == MIN_P:
            keep &= relative(z, limits[0], scale) >= limits[2]
        z = tl.where(keep, z, -INFINITY)
    top = _tops(z, TILES, VECTOR)
    # A tile of nothing but -inf has no maximum to subtract. At -100 no mass is left.
    reference = tl.where(top > -INFINITY, top, 0.0)
    t = tl.maximum((z - reference[:, None]) * scale, LOWEST)
    mass = tl.sum(exp2(t, FIXED).to(tl.int64), 1)
    tl.store(tops + here, top, mask=here * TILE < width)
    tl.store(sums + here, mass, mask=here * TILE < width)


@triton.jit
def _row_mass(rows, stride, width, temperature, min_p, tops, sums, arrivals, form, needed, splits, groups_per_split,
              FILTERED: tl.constexpr, TILES: tl.constexpr, VECTOR: tl.constexpr):  # fmt: skip
    """Stream this split's part of a row; leave the row's form if it is the last to come, and return whether it is.

    needed, or None where all rows are: if not, there is nothing to stream and nothing to leave.
    """
    heat = tl.load(temperature)
    greedy = heat == 0.0
    scale = (tl.full((), LOG2_E, tl.float64) / tl.where(greedy, 1.0, heat)).to(tl.float32)
    limits = (0.0, 0.0, 0.0)
    if FILTERED:
        limits = tl.load(form + TOP), tl.load(form + THRESHOLD), tl.load(form + LEAST)

    tiles = tl.cdiv(width, TILE)
    first = tl.program_id(1) * groups_per_split * TILES
    end = tl.minimum(first + groups_per_split * TILES, tiles)
    if needed is not None:
        end = tl.where(needed, end, first)
    whole = width // TILE
    tile = first
    while tile + TILES <= tl.minimum(end, whole):
        _tiles(rows, stride, width, tile, limits, scale, tops, sums, False, FILTERED, TILES, VECTOR)
        tile += TILES
    while tile < end:
        _tiles(rows, stride, width, tile, limits, scale, tops, sums, True, FILTERED, TILES, VECTOR)
        tile += TILES

    last = is_last_split(arrivals, splits)
    leaves = last
    if needed is not None:
        leaves &= needed
    if leaves:
        t = tl.arange(0, MAX_TILES)
        tile_top = tl.load(tops + t, mask=t < tiles, other=-INFINITY, cache_modifier=".cg")
        tile_sum = tl.load(sums + t, mask=t < tiles, other=0, cache_modifier=".cg")
        top = tl.max(tile_top, 0)
        if FILTERED:
            top = limits[0]  # it is always kept, and infinite where a NaN was
        usable = tl.abs(top) < INFINITY
        share = relative(tile_top, top, scale).to(tl.float64)
        mass = tl.sum((tile_sum.to(tl.float64) * share).to(tl.int64), 0)
        factor = (1.0 / (mass.to(tl.float64) * (1.0 / FIXED))).to(tl.float32)
        greedy &= usable
        found = -1
        if greedy:
            there = tl.min(tl.where(tile_top == top, t, MAX_TILES), 0) * TILE + tl.arange(0, TILE)
            z = tl.load(rows + there.to(tl.int64) * stride, mask=there < width, other=-INFINITY)
            found = tl.min(tl.where(at_least_single(z).to(tl.float32) == top, there, width), 0)
        tl.store(form + TOP, top)
        tl.store(form + SCALE, scale)
        tl.store(form + FACTOR, tl.where(usable, factor, float("nan")))
        tl.store(form + FIRST, found.to(tl.float32))
        if not FILTERED:
            tl.store(form + THRESHOLD, -INFINITY)
            if min_p is None:
                tl.store(form + LEAST, 0.0)
            else:
                tl.store(form + LEAST, tl.load(min_p).to(tl.float32))
    return last


INTEGERS = ["G", "z_width", "y_width", "z_row", "z_pos", "y_row", "y_pos", "tile_row",
            "splits", "groups_per_split", "launch", "seed", "position"]  # fmt: skip


@triton.jit(do_not_specialize=INTEGERS, do_not_specialize_on_alignment=["z_id", "y_id"])
def masses_kernel(draft, lengths, onehot, y, z, y_temperature, z_temperature, y_min_p, z_min_p,
                  tops, sums, arrivals, forms, seeds, positions, uniforms, known, met,
                  G: tl.int32, y_width: tl.int32, z_width: tl.int32,
                  y_row: tl.int64, y_pos: tl.int64, y_id, z_row: tl.int64, z_pos: tl.int64, z_id,
                  tile_row: tl.int32, splits: tl.int32, groups_per_split: tl.int32,
                  launch: tl.int64, seed: tl.int64, position: tl.int64,
                  GAMMA_BLOCK: tl.constexpr, FILTERED: tl.constexpr, TILES: tl.constexpr,
                  Y_ALIGN: tl.constexpr, Z_ALIGN: tl.constexpr):  # fmt: skip
    """Write the form of one row of logits, rows.py tells which, with the other splits of its vocabulary, program_id(1).

    Written are forms float32 [B, 2G + 1, FORM], and tops and sums [B, 2G + 1, tile_row]. With FILTERED, forms tell what
    the filters keep, and all else weighs nothing. Where known int64 [B] and met int32 [B, G] aren't None, rows behind a
    rejection that early.py knows of are left out, and what they would have written is not defined.
    """
    request, x, length, place, row, of_z, used, soft = row_here(draft, lengths, onehot, y, G, GAMMA_BLOCK)
    if used == 0:
        return
    tops += row * tile_row
    sums += row * tile_row
    form = forms + row * FORM
    arrivals += row
    needed = None
    if known is not None:
        needed = may_decide(known + request, launch, place, G)
    z += tl.multiple_of(request * z_row, Z_ALIGN)
    if y is not None:
        y += tl.multiple_of(request * y_row, Y_ALIGN)
    last = request < 0
    if of_z:
        if z_min_p is not None:
            z_min_p += request
        last = _row_mass(z + tl.multiple_of(place * z_pos, Z_ALIGN), z_id, z_width, z_temperature + request, z_min_p,
                         tops, sums, arrivals, form, needed, splits, groups_per_split, FILTERED, TILES,
                         Z_ALIGN)  # fmt: skip
    elif y is not None:
        if y_min_p is not None:
            y_min_p += request
        last = _row_mass(y + tl.multiple_of(place * y_pos, Y_ALIGN), y_id, y_width, y_temperature + request, y_min_p,
                         tops, sums, arrivals, form, needed, splits, groups_per_split, FILTERED, TILES,
                         Y_ALIGN)  # fmt: skip
    if known is not None:
        forms += request * tl.num_programs(2) * FORM
        tell_rejection(y, z, onehot, forms, seeds, positions, uniforms, known + request, met + request * G, launch,
                       seed, position, x, request, place, last & (place < length), soft, G, z_width, y_width,
                       z_pos, z_id, y_pos, y_id, GAMMA_BLOCK, FILTERED)  # fmt: skip
