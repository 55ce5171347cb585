"""Kernel A: a verdict from probabilities in one launch, by any rule's count of accepted drafts; and plain draws."""

import triton
import triton.language as tl

from specnb_kernels.arithmetic import GRID, high_half, weight
from specnb_kernels.block import MASSES, last_success
from specnb_kernels.drafts import (
    EXCESS_MASS,
    NO_MASS,
    NONFINITE,
    draw_words,
    faults,
    one_hot_at,
    read_ids,
    read_probabilities,
)
from specnb_kernels.logits import FORM, load_form
from specnb_kernels.sums import HIGHEST_MASS, chunk_sums, is_last_split, pick

PARTIALS = tl.constexpr(5)  # int64 values that a split leaves: two sums of the residual, two of p, a flag


@triton.jit
def first_rejection(draft, q, p, lengths, onehot, forms, words, outside, row, i, G, V,
                    p_width, q_width, p_pos, p_id, q_pos, q_id, FILTERED: tl.constexpr):  # fmt: skip
    """Find the row's first rejection; i is a block of more than G positions, p and q point to position 0.

    Returns the drafts x, the count n accepted, how many ids of q_n to subtract (0: none), the id to leave out (-1:
    none) and its weight in p_n, and the status bits so far.
    """
    x, length = read_ids(draft, lengths, row, i, G)
    in_range, p_x, q_x, q_width = read_probabilities(
        q, p, onehot, forms, x, i < length, row, i, G, V, p_width, q_width, p_pos, p_id, q_pos, q_id, FILTERED
    )
    u = (words >> 11).to(tl.int64).to(tl.float64) * (1.0 / GRID)
    accepted = in_range & (q_x > 0.0) & (u * q_x.to(tl.float64) < p_x.to(tl.float64))
    n = tl.min(tl.where((i < length) & (accepted == 0), i, length), 0)
    rejected = (i == n) & (i < length)
    status = faults((i <= n) & (i < length), rejected, in_range, p_x, q_x, outside, i, G)
    drop, drop_weight = one_hot_at(rejected, in_range, x, weight(p_x))
    return x, n, tl.where(n < length, q_width, 0), tl.where(q_width > 0, -1, drop), drop_weight, status


INTEGERS = ["seed", "position", "G", "V", "p_width", "q_width", "p_row", "p_pos", "q_row", "q_pos",
            "form_rows", "splits", "tiles_per_split", "index", "purpose"]  # fmt: skip


@triton.jit(do_not_specialize=INTEGERS, do_not_specialize_on_alignment=["p_id", "q_id"])
def verify_kernel(draft, q, p, lengths, onehot, forms, seeds, positions, uniforms,
                  masses, ratios, chances, findings,
                  tokens, num_accepted, status, partials, arrivals,
                  seed: tl.int64, position: tl.int64, G: tl.int32, V: tl.int32, p_width: tl.int32, q_width: tl.int32,
                  p_row: tl.int64, p_pos: tl.int64, p_id, q_row: tl.int64, q_pos: tl.int64, q_id,
                  form_rows: tl.int32, splits: tl.int32, tiles_per_split: tl.int32, index: tl.int32, purpose: tl.int32,
                  GAMMA_BLOCK: tl.constexpr, SPLIT_BLOCK: tl.constexpr, TILE: tl.constexpr, VECTOR: tl.constexpr,
                  P_ALIGN: tl.constexpr, Q_ALIGN: tl.constexpr, EACH: tl.constexpr,
                  FILTERED: tl.constexpr):  # fmt: skip
    """Verify row program_id(0) together with the other splits of its vocabulary, program_id(1).

    draft [B, G], q [B, G, q_width] or None with q_width 0, p [B, G + 1, p_width], the rest as in operators.verify.
    The rule is block where masses, ratios, chances and findings come from prefixes_kernel; else they are None. With
    EACH, G is 0, and a token is drawn at each of p's num_programs(2) positions by the word of its own position.
    Where forms, as masses_kernel leaves form_rows of them per request, isn't None, p and q are logits.
    P_ALIGN and Q_ALIGN are the number of elements of which every row's offset is a multiple (1: nothing is known).
    p_id and q_id, the strides of the ids, have no type here: only so does Triton compile a stride of 1 as a constant.
    """
    request = tl.program_id(0).to(tl.int64)
    split = tl.program_id(1)
    p += tl.multiple_of(request * p_row, P_ALIGN)
    if q is not None:
        q += tl.multiple_of(request * q_row, Q_ALIGN)
    here = request * 0 + position
    if positions is not None:
        here = tl.load(positions + request).to(tl.int64)
    row = request  # of the results and the workspace
    if forms is not None:
        forms += request * form_rows * FORM
    if EACH:
        place = tl.program_id(2)
        p += tl.multiple_of(place * p_pos, P_ALIGN)
        if forms is not None:
            forms += place * FORM
        here += place
        row = request * tl.num_programs(2) + place

    # Every program finds the count of accepted drafts for itself: a few gathers cost less than waiting for another's.
    i = tl.arange(0, GAMMA_BLOCK)
    words, outside = draw_words(seeds, uniforms, seed, here, request, i, G, index, purpose)
    final = tl.sum(tl.where(i == G, words, tl.zeros_like(words)), 0)
    if masses is None:
        scale = None
        x, n, q_width, drop, drop_weight, flags = first_rejection(
            draft, q, p, lengths, onehot, forms, words, outside, row, i, G, V,
            p_width, q_width, p_pos, p_id, q_pos, q_id, FILTERED)  # fmt: skip
    else:
        x, n, q_width, drop, drop_weight, flags, scale, summed = last_success(
            draft, q, p, lengths, onehot, forms, ratios, chances, findings, words, outside, row, i, G, V,
            p_width, q_width, p_pos, p_id, q_pos, q_id, FILTERED)  # fmt: skip
    p += tl.multiple_of(n * p_pos, P_ALIGN)
    if q is not None:
        q += tl.multiple_of(tl.where(q_width > 0, n, 0) * q_pos, Q_ALIGN)

    p_form = None
    q_form = None
    if forms is not None:
        p_form = load_form(forms + n * FORM, None, FILTERED)
        q_form = load_form(forms + (G + 1 + n) * FORM, q_width > 0, FILTERED)
    tiles = tl.cdiv(V, TILE)
    first = split * tiles_per_split
    end = tl.minimum(first + tiles_per_split, tiles)
    if masses is not None:
        end = tl.where(summed, first, end)  # the launch before has read this row; of any other the scale is 1
    rest, rest_high, own, own_high, nonfinite = chunk_sums(
        p, q, None, p_id, q_id, p_width, q_width, p_form, q_form, first, end, TILE, VECTOR,
        P_ALIGN * Q_ALIGN > 1, FILTERED)  # fmt: skip
    drop_weight = tl.where((drop >= first * TILE) & (drop < end * TILE), drop_weight, 0)
    rest -= drop_weight
    rest_high -= high_half(drop_weight)
    if masses is not None:
        before = masses + (row * (G - 1) + n - 1) * MASSES * splits + split
        rest += tl.load(before, mask=summed, other=0)
        rest_high += tl.load(before + splits, mask=summed, other=0)
    mine = partials + row * PARTIALS * splits + split
    tl.store(mine, rest)
    tl.store(mine + splits, rest_high)
    tl.store(mine + 2 * splits, own)
    tl.store(mine + 3 * splits, own_high)
    tl.store(mine + 4 * splits, nonfinite)

    if is_last_split(arrivals + row, splits):
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
        none = excess | empty
        if masses is not None:
            none |= (flags & EXCESS_MASS) != 0
        end = tl.where(none, first, tl.minimum(first + tiles_per_split, tiles))
        found = pick(p, q, scale, p_id, q_id, p_width, q_width, p_form, q_form, drop, fallback, base, target,
                     first, end, V, TILE, FILTERED)  # fmt: skip
        token = tl.where(found < V, found, -1).to(tl.int64)

        tl.store(tokens + row * (G + 1) + i, tl.where(i < n, x, tl.where(i == n, token, -1)), mask=i <= G)
        tl.store(num_accepted + row, n.to(tl.int64))
        flags |= tl.max(nonfinite_s, 0).to(tl.int32) * NONFINITE
        flags |= empty.to(tl.int32) * NO_MASS | excess.to(tl.int32) * EXCESS_MASS
        tl.store(status + row, flags)
