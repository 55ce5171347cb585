"""The rule block: a test of each prefix of a draft that has a residual behind it, and the longest that passes."""

import triton
import triton.language as tl

from specnb_kernels.arithmetic import GRID, UNIT, high_half, weight
from specnb_kernels.drafts import (
    EXCESS_MASS,
    NO_MASS,
    NONFINITE,
    faults,
    one_hot_at,
    read_ids,
    read_probabilities,
)
from specnb_kernels.logits import FORM, load_form
from specnb_kernels.sums import HIGHEST_MASS, chunk_sums, is_last_split

MASSES = tl.constexpr(3)  # int64 values that a split leaves: two sums of the residual, a flag


@triton.jit
def _ratio(before, in_range, p_x, q_x):
    """Return min(1, before·p(x) / q(x)) in float64 and in this order; 0 for a NaN and unless both are positive."""
    possible = in_range & (p_x > 0.0) & (q_x > 0.0)
    ratio = before * p_x.to(tl.float64) / tl.where(possible, q_x, 1.0).to(tl.float64)
    return tl.where(possible, tl.where(ratio < 1.0, ratio, tl.where(ratio >= 1.0, 1.0, 0.0)), 0.0)


@triton.jit
def _ratio_of_prefix(n, in_range, p_x, q_x, i):
    """Return a_n, one draft after the other: with rounding, their order is part of the result."""
    a = tl.full((), 1.0, tl.float64)
    k = 0
    while k < n:
        a = tl.sum(tl.where(i == k, _ratio(a, in_range, p_x, q_x), 0.0), 0)
        k += 1
    return a


INTEGERS = ["G", "V", "p_width", "q_width", "p_row", "p_pos", "q_row", "q_pos", "form_rows",
            "splits", "tiles_per_split"]  # fmt: skip


@triton.jit(do_not_specialize=INTEGERS, do_not_specialize_on_alignment=["p_id", "q_id"])
def prefixes_kernel(draft, q, p, lengths, onehot, forms, masses, arrivals, ratios, chances, findings,
                 G: tl.int32, V: tl.int32, p_width: tl.int32, q_width: tl.int32,
                 p_row: tl.int64, p_pos: tl.int64, p_id, q_row: tl.int64, q_pos: tl.int64, q_id,
                 form_rows: tl.int32, splits: tl.int32, tiles_per_split: tl.int32,
                 GAMMA_BLOCK: tl.constexpr, SPLIT_BLOCK: tl.constexpr, TILE: tl.constexpr, VECTOR: tl.constexpr,
                 P_ALIGN: tl.constexpr, Q_ALIGN: tl.constexpr, FILTERED: tl.constexpr):  # fmt: skip
    """Sum the residual (a_n·p_n - q_n)+ behind n = program_id(2) + 1 drafts; row, split and layout as in verdict.py.

    Where the row has a draft behind these, writes the sums to masses int64 [B, G - 1, MASSES, splits], and to
    [B, G - 1] a_n, the chance h_n of the test, and what was found: NONFINITE, EXCESS_MASS, or NO_MASS.
    """
    row = tl.program_id(0).to(tl.int64)
    split = tl.program_id(1)
    n = tl.program_id(2) + 1
    i = tl.arange(0, GAMMA_BLOCK)
    x, length = read_ids(draft, lengths, row, i, G)
    if n >= length:
        return
    p += tl.multiple_of(row * p_row, P_ALIGN)
    if q is not None:
        q += tl.multiple_of(row * q_row, Q_ALIGN)
    if forms is not None:
        forms += row * form_rows * FORM
    in_range, p_x, q_x, q_width = read_probabilities(
        q, p, onehot, forms, x, i < length, row, i, G, V, p_width, q_width, p_pos, p_id, q_pos, q_id, FILTERED
    )
    a = _ratio_of_prefix(n, in_range, p_x, q_x, i)
    p += tl.multiple_of(n * p_pos, P_ALIGN)
    if q is not None:
        q += tl.multiple_of(tl.where(q_width > 0, n, 0) * q_pos, Q_ALIGN)

    first = split * tiles_per_split
    end = tl.minimum(first + tiles_per_split, tl.cdiv(V, TILE))
    p_form = None
    q_form = None
    if forms is not None:
        p_form = load_form(forms + n * FORM, None, FILTERED)
        q_form = load_form(forms + (G + 1 + n) * FORM, q_width > 0, FILTERED)
    rest, rest_high, _, _, nonfinite = chunk_sums(
        p, q, a, p_id, q_id, p_width, q_width, p_form, q_form, first, end, TILE, VECTOR,
        P_ALIGN * Q_ALIGN > 1, FILTERED)  # fmt: skip
    # Of a one-hot draft a·p(x) - 1 stays, which is positive only in a row that is no distribution.
    left = a * p_x.to(tl.float64)
    drop, drop_weight = one_hot_at(i == n, in_range, x, weight(left))
    _, kept_weight = one_hot_at(i == n, in_range, x, weight(left - 1.0))
    mine = (q_width == 0) & (drop >= first * TILE) & (drop < end * TILE)
    prefix = row * (G - 1) + n - 1
    theirs = masses + prefix * MASSES * splits
    tl.store(theirs + split, rest - tl.where(mine, drop_weight - kept_weight, 0))
    tl.store(theirs + splits + split, rest_high - tl.where(mine, high_half(drop_weight) - high_half(kept_weight), 0))
    tl.store(theirs + 2 * splits + split, nonfinite)

    if is_last_split(arrivals + prefix, splits):
        s = tl.arange(0, SPLIT_BLOCK)
        total = tl.sum(tl.load(theirs + s, mask=s < splits, other=0, cache_modifier=".cg"), 0)
        high = tl.sum(tl.load(theirs + splits + s, mask=s < splits, other=0, cache_modifier=".cg"), 0)
        bad = tl.max(tl.load(theirs + 2 * splits + s, mask=s < splits, other=0, cache_modifier=".cg"), 0)
        excess = high >= HIGHEST_MASS
        mass = tl.where(excess, 0, total).to(tl.float64) * (1.0 / UNIT)
        whole = mass + (1.0 - a)
        tl.store(ratios + prefix, a)
        tl.store(chances + prefix, tl.where(whole > 0.0, mass / tl.where(whole > 0.0, whole, 1.0), 1.0))
        found = bad.to(tl.int32) * NONFINITE | excess.to(tl.int32) * EXCESS_MASS
        tl.store(findings + prefix, found | ((total | high) == 0).to(tl.int32) * NO_MASS)


@triton.jit
def last_success(draft, q, p, lengths, onehot, forms, ratios, chances, findings, words, outside, row, i, G, V,
                 p_width, q_width, p_pos, p_id, q_pos, q_id, FILTERED: tl.constexpr):  # fmt: skip
    """Find the longest prefix whose test passes, draft i closing prefix i + 1; the rest as first_rejection.

    Returns what that does, then a_n, and whether the launch before summed the residual of n to a mass that isn't 0. If
    not, a_n is 1: n is 0 or all, or passed by 0/0.
    """
    x, length = read_ids(draft, lengths, row, i, G)
    in_range, p_x, q_x, q_width = read_probabilities(
        q, p, onehot, forms, x, i < length, row, i, G, V, p_width, q_width, p_pos, p_id, q_pos, q_id, FILTERED
    )
    prefix = row * (G - 1) + i
    tested = i + 1 < length  # the whole draft has no residual behind it: it passes by its ratio
    before = tl.load(ratios + prefix - 1, mask=(i > 0) & (i < length), other=1.0)
    ratio = _ratio(before, in_range, p_x, q_x)
    chance = tl.where(tested, tl.load(chances + prefix, mask=tested, other=0.0), ratio)
    found = tl.load(findings + prefix, mask=tested, other=NO_MASS)
    u = (words >> 11).to(tl.int64).to(tl.float64) * (1.0 / GRID)
    n = tl.max(tl.where((i < length) & (u < chance), i + 1, 0), 0)

    status = faults(i < length, i < length, in_range, p_x, q_x, outside, i, G)
    status |= tl.reduce_or(found, 0) & (NONFINITE | EXCESS_MASS)
    summed = tl.max(tl.where((i + 1 == n) & ((found & NO_MASS) == 0), 1, 0), 0) > 0
    scale = tl.sum(tl.where(i == n, before, 0.0), 0)
    drop, drop_weight = one_hot_at((i == n) & (i < length), in_range, x, weight(p_x))
    drop = tl.where(q_width > 0, -1, drop)
    return x, n, tl.where(n < length, q_width, 0), drop, drop_weight, status, scale, summed
