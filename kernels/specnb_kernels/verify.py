"""Kernel A: the whole verdict from probabilities in one launch, rules token and match, and a plain draw."""

import triton
import triton.language as tl

from specnb_kernels.arithmetic import (
    GRID,
    INFINITY,
    INFINITY_BITS,
    at_least_single,
    high_half,
    larger,
    magnitude,
    on_grid,
    residual,
    weight,
    word,
)

NONFINITE = tl.constexpr(1)
IMPOSSIBLE = tl.constexpr(2)
OUT_OF_RANGE = tl.constexpr(4)
NO_MASS = tl.constexpr(8)
EXCESS_MASS = tl.constexpr(16)
BAD_UNIFORM = tl.constexpr(32)

ACCEPTING = tl.constexpr(1)  # the Philox purpose of the acceptance uniforms
HIGHEST_MASS = tl.constexpr((1 << 31) - (1 << 20))  # of the weights' high halves: then no sum reaches 2^63
PARTIALS = tl.constexpr(5)  # int64 values that a split leaves: two sums of the residual, two of p, a flag


@triton.jit
def _row_seed(seeds, seed, row):
    """Return the Philox key and stream of a row: its own key and stream 0, or one key and stream = row."""
    if seeds is None:
        return row * 0 + seed, row
    else:
        return tl.load(seeds + row).to(tl.int64), row * 0


@triton.jit
def _words(seeds, uniforms, seed, position, row, i, G, index, purpose):
    """Return the words of drafts i < G and, at i = G, of the final token; and which came from outside [0, 1)."""
    if uniforms is None:
        key, stream = _row_seed(seeds, seed, row)
        words = word(key, stream, position, tl.where(i == G, index, i), tl.where(i == G, purpose, ACCEPTING))
        return words, i < 0
    else:
        steps, outside = on_grid(tl.load(uniforms + row * (G + 1) + i, mask=i <= G, other=0.0))
        return steps.to(tl.uint64) << 11, outside


@triton.jit
def _first_rejection(draft, q, p, lengths, onehot, words, outside, row, i, G, V,
                     p_width, q_width, p_pos, p_id, q_pos, q_id):  # fmt: skip
    """Find the row's first rejection; i is a block of more than G positions, p and q point to position 0.

    Returns the drafts x, the count n accepted, how many ids of q_n to subtract (0: none), the id to leave out (-1:
    none) and its weight in p_n, and the status bits so far.
    """
    x = tl.load(draft + row * G + i, mask=i < G, other=-1)
    length = tl.min(tl.where(x == -1, i, G), 0)
    if lengths is not None:
        length = tl.minimum(tl.maximum(tl.load(lengths + row), 0), length).to(tl.int32)
    in_range = (x >= 0) & (x < V) & (i < length)
    p_x = at_least_single(tl.load(p + i * p_pos + x * p_id, mask=in_range & (x < p_width), other=0.0))
    q_x = tl.full(i.shape, 1.0, tl.float32)
    if q is not None:
        if onehot is not None:
            q_width = tl.where(tl.load(onehot + row), 0, q_width)
        q_soft = at_least_single(tl.load(q + i * q_pos + x * q_id, mask=in_range & (x < q_width), other=0.0))
        q_x = tl.where(q_width > 0, q_soft, 1.0)
    u = (words >> 11).to(tl.int64).to(tl.float64) * (1.0 / GRID)
    accepted = in_range & (q_x > 0.0) & (u * q_x.to(tl.float64) < p_x.to(tl.float64))

    n = tl.min(tl.where((i < length) & (accepted == 0), i, length), 0)
    read = (i <= n) & (i < length)
    last = (i == n) & (i < length)
    finite = (magnitude(p_x) < INFINITY) & (magnitude(q_x) < INFINITY)
    faults = tl.where(read & in_range & (finite == 0), NONFINITE, 0)
    faults |= tl.where(last & in_range & ((q_x > 0.0) == 0), IMPOSSIBLE, 0)
    faults |= tl.where(last & (in_range == 0), OUT_OF_RANGE, 0)
    faults |= tl.where((read | (i == G)) & outside, BAD_UNIFORM, 0)
    status = tl.reduce_or(faults, 0)

    drop = tl.max(tl.where(last & in_range, x, -1), 0).to(tl.int32)
    drop_weight = tl.sum(tl.where(last, weight(p_x), 0), 0)
    return x, n, tl.where(n < length, q_width, 0), tl.where(q_width > 0, -1, drop), drop_weight, status


@triton.jit
def _tile_sums(p, q, p_id, q_id, p_width, q_width, ids, MASKED: tl.constexpr):
    """Return over axis 0 of a tile the sums of the residual's weights, of their high halves, of p's two, and the peak.

    The peak is the largest magnitude's bits: of floats without a sign the bits order as the values do, NaN last.
    Without MASKED all ids lie inside p's row and q_width is a multiple of the tile, so that no mask splits a vector.
    """
    if MASKED:
        p_v = at_least_single(tl.load(p + ids.to(tl.int64) * p_id, mask=ids < p_width, other=0.0))
    else:
        p_v = at_least_single(tl.load(p + ids.to(tl.int64) * p_id))
    own = weight(p_v)
    rest = own
    peak = magnitude(p_v)
    if q is not None:
        q_v = at_least_single(tl.load(q + ids.to(tl.int64) * q_id, mask=ids < q_width, other=0.0))
        rest = weight(residual(p_v, q_v))
        peak = larger(peak, magnitude(q_v))
    own_high, rest_high = tl.sum(high_half(own), 0), tl.sum(high_half(rest), 0)
    return tl.sum(rest, 0), rest_high, tl.sum(own, 0), own_high, tl.max(peak.to(tl.int32, bitcast=True), 0)


@triton.jit
def _chunk_sums(p, q, p_id, q_id, p_width, q_width, first, end,
                TILE: tl.constexpr, VECTOR: tl.constexpr, ALONG: tl.constexpr):  # fmt: skip
    """Return over tiles first .. end - 1 of the row pair the four sums, and whether an element was not finite."""
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
        a, b, c, d, m = _tile_sums(p, q, p_id, q_id, p_width, q_whole, tile * TILE + lane, False)
        rest, rest_high, own, own_high, peak = rest + a, rest_high + b, own + c, own_high + d, tl.maximum(peak, m)
        tile += 1
    while tile < end:
        a, b, c, d, m = _tile_sums(p, q, p_id, q_id, p_width, q_width, tile * TILE + lane, True)
        rest, rest_high, own, own_high, peak = rest + a, rest_high + b, own + c, own_high + d, tl.maximum(peak, m)
        tile += 1
    nonfinite = (tl.max(peak, 0) >= INFINITY_BITS).to(tl.int64)
    return tl.sum(rest, 0), tl.sum(rest_high, 0), tl.sum(own, 0), tl.sum(own_high, 0), nonfinite


@triton.jit
def _pick(p, q, p_id, q_id, p_width, q_width, drop, fallback, base, target, first, end, V, TILE: tl.constexpr):
    """Return the smallest id of tiles first .. end - 1 at which base + the weights so far exceed target, else V."""
    found = V
    tile = first
    while (found == V) & (tile < end):
        ids = tile * TILE + tl.arange(0, TILE)
        p_v = at_least_single(tl.load(p + ids.to(tl.int64) * p_id, mask=ids < p_width, other=0.0))
        w = weight(p_v)
        if q is not None:
            q_v = at_least_single(tl.load(q + ids.to(tl.int64) * q_id, mask=ids < q_width, other=0.0))
            w = tl.where(fallback, w, weight(residual(p_v, q_v)))
        w = tl.where(ids == drop, 0, w)
        found = tl.min(tl.where(base + tl.cumsum(w, 0) > target, ids, V), 0)
        base += tl.sum(w, 0)
        tile += 1
    return found


INTEGERS = ["seed", "position", "G", "V", "p_width", "q_width", "p_row", "p_pos", "q_row", "q_pos",
            "splits", "tiles_per_split", "index", "purpose"]  # fmt: skip


@triton.jit(do_not_specialize=INTEGERS, do_not_specialize_on_alignment=["p_id", "q_id"])
def verify_kernel(draft, q, p, lengths, onehot, seeds, positions, uniforms,
                  tokens, num_accepted, status, partials, arrivals,
                  seed: tl.int64, position: tl.int64, G: tl.int32, V: tl.int32, p_width: tl.int32, q_width: tl.int32,
                  p_row: tl.int64, p_pos: tl.int64, p_id, q_row: tl.int64, q_pos: tl.int64, q_id,
                  splits: tl.int32, tiles_per_split: tl.int32, index: tl.int32, purpose: tl.int32,
                  GAMMA_BLOCK: tl.constexpr, SPLIT_BLOCK: tl.constexpr, TILE: tl.constexpr, VECTOR: tl.constexpr,
                  P_ALIGN: tl.constexpr, Q_ALIGN: tl.constexpr):  # fmt: skip
    """Verify row program_id(0) together with the other splits of its vocabulary, program_id(1).

    draft [B, G], q [B, G, q_width] or None with q_width 0, p [B, G + 1, p_width], the rest as in launch.verify.
    P_ALIGN and Q_ALIGN are the number of elements of which every row's offset is a multiple (1: nothing is known).
    p_id and q_id, the strides of the ids, have no type here: only so does Triton compile a stride of 1 as a constant.
    """
    row = tl.program_id(0).to(tl.int64)
    split = tl.program_id(1)
    p += tl.multiple_of(row * p_row, P_ALIGN)
    if q is not None:
        q += tl.multiple_of(row * q_row, Q_ALIGN)
    here = row * 0 + position
    if positions is not None:
        here = tl.load(positions + row).to(tl.int64)

    # Every program finds the first rejection for itself: 2G gathers are cheaper than waiting for another's.
    i = tl.arange(0, GAMMA_BLOCK)
    words, outside = _words(seeds, uniforms, seed, here, row, i, G, index, purpose)
    final = tl.sum(tl.where(i == G, words, tl.zeros_like(words)), 0)
    x, n, q_width, drop, drop_weight, flags = _first_rejection(
        draft, q, p, lengths, onehot, words, outside, row, i, G, V, p_width, q_width, p_pos, p_id, q_pos, q_id
    )
    p += tl.multiple_of(n * p_pos, P_ALIGN)
    if q is not None:
        q += tl.multiple_of(tl.where(q_width > 0, n, 0) * q_pos, Q_ALIGN)

    tiles = tl.cdiv(V, TILE)
    first = split * tiles_per_split
    end = tl.minimum(first + tiles_per_split, tiles)
    rest, rest_high, own, own_high, nonfinite = _chunk_sums(
        p, q, p_id, q_id, p_width, q_width, first, end, TILE, VECTOR, P_ALIGN * Q_ALIGN > 1)  # fmt: skip
    drop_weight = tl.where((drop >= first * TILE) & (drop < end * TILE), drop_weight, 0)
    mine = partials + row * PARTIALS * splits + split
    tl.store(mine, rest - drop_weight)
    tl.store(mine + splits, rest_high - high_half(drop_weight))
    tl.store(mine + 2 * splits, own)
    tl.store(mine + 3 * splits, own_high)
    tl.store(mine + 4 * splits, nonfinite)

    # The barrier brings this block's stores before its ticket; acq_rel brings the others' before what follows.
    tl.debug_barrier()
    ticket = tl.atomic_add(arrivals + row, 1, sem="acq_rel", scope="gpu")
    if (ticket & (splits - 1)) == splits - 1:
        s = tl.arange(0, SPLIT_BLOCK)
        theirs = partials + row * PARTIALS * splits + s
        rest_s = tl.load(theirs, mask=s < splits, other=0, cache_modifier=".cg")
        rest_high_s = tl.load(theirs + splits, mask=s < splits, other=0, cache_modifier=".cg")
        own_s = tl.load(theirs + 2 * splits, mask=s < splits, other=0, cache_modifier=".cg")
        own_high_s = tl.load(theirs + 3 * splits, mask=s < splits, other=0, cache_modifier=".cg")
        nonfinite_s = tl.load(theirs + 4 * splits, mask=s < splits, other=0, cache_modifier=".cg")

        # The high halves tell a sum of 0 from one that wrapped around to it.
        fallback = (tl.sum(rest_s, 0) | tl.sum(rest_high_s, 0)) == 0
        drop = tl.where(fallback, -1, drop)
        sums = tl.where(fallback, own_s, rest_s)
        total = tl.sum(sums, 0)
        high = tl.where(fallback, tl.sum(own_high_s, 0), tl.sum(rest_high_s, 0))
        excess = high >= HIGHEST_MASS
        empty = (total | high) == 0
        target = tl.umulhi(final, total.to(tl.uint64)).to(tl.int64)

        chosen = tl.sum((tl.cumsum(sums, 0) <= target).to(tl.int32), 0)
        base = tl.sum(tl.where(s < chosen, sums, 0), 0)
        first = chosen * tiles_per_split
        end = tl.where(excess | empty, first, tl.minimum(first + tiles_per_split, tiles))
        found = _pick(p, q, p_id, q_id, p_width, q_width, drop, fallback, base, target, first, end, V, TILE)
        token = tl.where(found < V, found, -1).to(tl.int64)

        tl.store(tokens + row * (G + 1) + i, tl.where(i < n, x, tl.where(i == n, token, -1)), mask=i <= G)
        tl.store(num_accepted + row, n.to(tl.int64))
        flags |= tl.max(nonfinite_s, 0).to(tl.int32) * NONFINITE
        flags |= empty.to(tl.int32) * NO_MASS | excess.to(tl.int32) * EXCESS_MASS
        tl.store(status + row, flags)
