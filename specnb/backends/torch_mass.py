"""Integer masses in PyTorch: their sums, and the token that a word picks from them.

A whole row is never held as masses: they are summed in blocks of ids, and a token is found by a scan of the sums,
then of one block.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from specnb.backends import torch_pick, torch_words
from specnb.backends.torch_words import multiply_high
from specnb.verdict import Status

BLOCK = 1024  # ids per partial sum
CHUNK = 2**17  # elements per pass on a CPU, so that the float64 temporaries stay in cache
_EXCESS = 2**31 - 2**20


class Masses(NamedTuple):
    """The integer masses of (scale·p − q⁺)+ in each row, not computed yet.

    p [B, V], q [B, V] or None; point [B, 1] is an id where q is 1, −1 for none; scale float64 [B, 1], None is 1.
    plain: no row is negative, q is finite and p has mass below 1.5, so that no value and no sum needs a check.
    """

    p: Tensor
    q: Tensor | None
    point: Tensor
    scale: Tensor | None
    plain: bool


def masses(p, q=None, soft=None, point=None, scale=None):
    """Return the masses of row pairs p [B, V], q [B, V'], and status bits [B].

    soft [B] says which rows of q count; point and scale [B] as in `Masses`.
    """
    status = torch.zeros(len(p), dtype=torch.int64, device=p.device)
    q = q if q is None else _where_soft(q, soft)
    plain = torch_words.on_cpu(p.device) and _is_plain(p) and (q is None or _is_finite(q))
    if not plain:
        status |= ~p.isfinite().all(1) * int(Status.NONFINITE)
        status |= 0 if q is None else ~q.isfinite().all(1) * int(Status.NONFINITE)
    if q is not None and q.shape[1] < p.shape[1]:
        q = pad(q, (0, p.shape[1] - q.shape[1]))
    point = torch.full_like(status, -1) if point is None else point
    return Masses(p, q, point[:, None], scale if scale is None else scale[:, None], plain), status


def total(rows, wanted):
    """Return Σ of the masses as float64 [B], 0 where it is too large, and status bits [B].

    wanted [B]: rows whose sum matters; where none does and none can be too large, a CPU adds up nothing.
    """
    if rows.plain and not bool(wanted.any()):
        return torch.zeros(len(rows.p), dtype=torch.float64), torch.zeros(len(rows.p), dtype=torch.int64)
    sums, high = _block_sums(rows)
    excess = high >= _EXCESS
    return sums.sum(1).masked_fill_(excess, 0).double() * 2.0**-62, excess * int(Status.EXCESS_MASS)


def pick(rows, word):
    """Return the token of each row that its word [B] picks from the masses, those of p if all are 0; status bits."""
    if not (torch_words.on_cpu(rows.p.device) and rows.plain and rows.p.shape[1] >= torch_pick.LONG):
        return _pick(rows, word)
    p, q, point, scale, _ = rows
    token, status = torch.zeros_like(word), torch.zeros_like(word)
    for b, (word_b, point_b) in enumerate(zip(word.tolist(), point[:, 0].tolist(), strict=True)):
        q_b, scale_b = None if q is None else q[b, : p.shape[1]], None if scale is None else scale[b].item()
        certain = torch_pick.certain(p[b], q_b, point_b, scale_b, word_b)
        if certain is None:
            one = slice(b, b + 1)
            some = Masses(p[one], q if q is None else q[one], point[one], scale if scale is None else scale[one], True)
            token[one], status[one] = _pick(some, word[one])
        else:
            token[b] = certain
    return token, status


def pick_one(p, q, point, word):
    """Return the token that a word picks from the masses of one row pair on a CPU, and status bits, as ints.

    p [V], q [V'] (None: 0), point: an id where q is 1, −1 for none. word: an int.
    """
    if len(p) >= torch_pick.LONG and float(p.amin()) >= 0 and (q is None or _is_finite(q)):
        token = torch_pick.certain(p, q, point, None, word)
        if token is not None:
            return token, 0
    rows, flags = masses(p[None], q if q is None else q[None], torch.tensor([True]), torch.tensor([point]))
    token, more_flags = _pick(rows, torch.tensor([word]))
    return token.item(), (flags | more_flags).item()


def _pick(rows, word):
    """Return what `pick` does, by integers alone."""
    p, q, point, scale, plain = rows
    sums, high = _block_sums(rows)
    cumulative = sums.cumsum(1)
    empty = (cumulative[:, -1:] | high[:, None]) == 0  # a sum of 2^64 has wrapped around to 0
    if not torch_words.on_cpu(p.device) or bool(empty.any()):
        q = q if q is None else q.masked_fill(empty, 0)
        point = point.masked_fill(empty, -1)
        scale = scale if scale is None else scale.masked_fill(empty, 1.0)
        sums, high = _block_sums(Masses(p, q, point, scale, plain))
        cumulative = sums.cumsum(1)
    whole = cumulative[:, -1:]
    threshold = multiply_high(word[:, None], whole)
    below = cumulative <= threshold
    threshold -= (below * sums).sum(1, keepdim=True)
    block = below.sum(1, keepdim=True)
    ids = block * BLOCK + torch.arange(BLOCK, device=p.device)
    known = ids.clamp(max=p.shape[1] - 1)
    hit = ids == point
    w = _weights(p.gather(1, known), hit if q is None else q.gather(1, known) + hit, scale, plain)
    token = block[:, 0] * BLOCK + (w.masked_fill_(ids != known, 0).cumsum(1) <= threshold).sum(1)
    excess, nothing = high >= _EXCESS, (whole[:, 0] | high) == 0
    status = torch.where(excess, int(Status.EXCESS_MASS), nothing * int(Status.NO_MASS))
    return token.masked_fill_(excess | nothing, -1), status


def _where_soft(q, soft):
    """Return q with zeros for the rows that don't count; a CPU copies it only if some do and some don't."""
    if torch_words.on_cpu(q.device) and bool(soft.all()):
        return q
    return None if torch_words.on_cpu(q.device) and not bool(soft.any()) else q.masked_fill(~soft[:, None], 0)


def _is_plain(rows):
    """Tell whether all rows are nonnegative with mass below 1.5."""
    return float(rows.amin()) >= 0 and float(rows.sum(1).amax()) < 1.5


def _is_finite(rows):
    """Tell whether all rows are nonnegative and finite."""
    least, largest = rows.aminmax()
    return float(least) >= 0 and float(largest) < torch.inf


def _weights(p, q, scale, plain):
    """Return the integer masses trunc((scale·p − q⁺)·2^62), 0 outside (0, 2); plain rows need no comparisons."""
    x = p.to(torch.float64, copy=True)
    x = x if scale is None else x.mul_(scale)
    if plain:
        return (x if q is None else x.sub_(q.double()).clamp_min_(0.0)).mul_(2.0**62).long()
    x = x if q is None else x.sub_(torch.where(q > 0, q, 0).double())
    return (torch.where((x > 0) & (x < 2), x, 0.0) * 2.0**62).long()


def _block_sums(rows):
    """Return the masses summed in blocks of ids, int64 [B, ceil(V/BLOCK)], and the sum of their high words [B].

    Plain rows can't be too heavy: their high words are not summed, and 0.
    """
    p, q, point, scale, plain = rows
    B, V = p.shape
    step = max(BLOCK, CHUNK // B // BLOCK * BLOCK) if torch_words.on_cpu(p.device) else -(-V // BLOCK) * BLOCK
    sums, high = [], torch.zeros(B, dtype=torch.int64, device=p.device)
    for start in range(0, V, step):
        columns = slice(start, min(start + step, V))
        w = _weights(p[:, columns], q if q is None else q[:, columns], scale, plain)
        if not plain:
            high = high + (w >> 32).sum(1)
        full = w.shape[1] // BLOCK * BLOCK
        if full:
            sums.append(w[:, :full].unflatten(1, (-1, BLOCK)).sum(2))
        if full < w.shape[1]:
            sums.append(w[:, full:].sum(1, keepdim=True))
    sums = torch.cat(sums, 1) if len(sums) > 1 else sums[0]
    if torch_words.on_cpu(p.device) and not bool((point >= 0).any()):
        return sums, high
    return _with_points(rows, sums, high)


def _with_points(rows, sums, high):
    """Return block sums and high words after the 1 of a one-hot q was taken from p at its id."""
    at = rows.point.clamp(0, rows.p.shape[1] - 1)
    p_x, elsewhere = rows.p.gather(1, at), rows.point != at
    before, after = (
        _weights(p_x, one, rows.scale, rows.plain).masked_fill_(elsewhere, 0) for one in (None, torch.ones_like(p_x))
    )
    sums = sums.scatter_add(1, at // BLOCK, after - before)
    return sums, high if rows.plain else high + ((after >> 32) - (before >> 32))[:, 0]
