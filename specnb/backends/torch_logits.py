"""From logits to probabilities in PyTorch, by the contract; see `specnb.backends.numpy.probabilities`."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from specnb.backends import torch_softmax, torch_words
from specnb.backends.torch_softmax import TILE
from specnb.backends.torch_words import multiply_high

CHUNK = 2**17  # logits per pass on a CPU, so that its cache holds the temporaries
FEW = 1024  # largest logits that a CPU sorts: they mostly decide what filters keep
_LOG2_E = 1.4426950408889634
_EXP2 = (1.0, 0.6931471824645996, 0.24022650718688965, 0.05550327152013779, 0.009618056938052177,
         0.0013400427997112274, 0.00015461444854736328)  # fmt: skip


def probabilities(logits, temperature, top_k, top_p, min_p):
    """Return the processed distributions of logits; see `specnb.backends.numpy.probabilities`."""
    if not torch.compiler.is_compiling():
        return _probabilities(logits, temperature, top_k, top_p, min_p)
    return torch.ops.specnb.probabilities(logits, temperature, top_k, top_p, min_p)


def processed(logits, parameters):
    """Return the processed distributions of logits [B, R, V], a request's R rows with its own parameters [B]."""
    R = logits.shape[1]
    rows = probabilities(logits.flatten(0, 1), *(values.repeat_interleave(R) for values in parameters))
    return rows.view(logits.shape)


def _probabilities(logits, temperature, top_k, top_p, min_p):
    if torch_words.on_cpu(logits.device):
        step = max(1, CHUNK // logits.shape[1])
        arguments = (a.split(step) for a in (logits, temperature, top_k, top_p, min_p))
        parts = [_on_cpu(*chunk) for chunk in zip(*arguments, strict=True)]
        return torch.cat(parts) if len(parts) > 1 else parts[0]
    z = logits.float()
    top = z.amax(1)
    usable, greedy = top.isfinite(), temperature == 0
    z = torch.where(usable[:, None], z, 0.0)
    scale = (_LOG2_E / torch.where(greedy, 1.0, temperature)).float()[:, None]
    p = _softmax(_filter(z, scale, top_k, top_p, min_p), scale)
    first = z.argmax(1, keepdim=True)
    ids = torch.arange(z.shape[1], device=z.device)
    p = torch.where(greedy[:, None], (ids == first).float(), p)
    return torch.where(usable[:, None], p, torch.nan)


def _on_cpu(logits, temperature, top_k, top_p, min_p):
    """Return what `_probabilities` does for rows that a cache holds, doing nothing for what doesn't occur in them."""
    z, T = logits.float(), temperature.numpy()
    usable, greedy = np.isfinite(z.amax(1).numpy()), T == 0
    if not usable.all():
        z = torch.where(torch.from_numpy(usable)[:, None], z, 0.0)
    scale = (_LOG2_E / np.where(greedy, 1.0, T)).astype(np.float32)
    filters = [values.numpy() for values in (top_k, top_p, min_p)]
    kept = z
    if any((values != off).any() for values, off in zip(filters, (0, 1, 0), strict=True)):
        kept = _filter_on_cpu(z, torch.from_numpy(scale)[:, None], top_k, top_p, min_p)
    p = torch_softmax.softmax(kept.numpy(), scale)
    if greedy.any():
        p[greedy] = np.arange(z.shape[1]) == z.numpy()[greedy].argmax(1)[:, None]
    if not usable.all():
        p[~usable] = np.nan
    return torch.from_numpy(p)


def row_of(row, temperature):
    """Return the distribution of one row of logits [V] on a CPU by a temperature above 0; NaN in a dead row."""
    z = row.float()
    if not np.isfinite(z.amax().item()):
        return torch.full_like(z, torch.nan)
    return torch.from_numpy(torch_softmax.softmax(z.numpy()[None], np.array([_LOG2_E / temperature], np.float32))[0])


def exponents(row, temperature):
    """Return the t <= 0 that the contract takes 2^t of, for logits [V] and a temperature above 0; NaN if dead."""
    z = row.float()
    return (z - z.amax()).mul_(float(np.float32(_LOG2_E / temperature)))


def _exp2(t):
    """Return 2^t in float32 for t <= 0, in the contract's arithmetic."""
    magic = 1.5 * 2**23
    f = t.clamp(min=-127.0)
    k = (f + magic).sub_(magic)
    f.sub_(k)
    value = f * _EXP2[6]
    for coefficient in _EXP2[5:0:-1]:  # Horner in place: temporaries would take most of the time
        value.add_(coefficient).mul_(f)
    value.add_(_EXP2[0])
    value.mul_(k.int().add_(127).bitwise_left_shift_(23).view(torch.float32))
    return value.masked_fill_(t < -100, 0.0)


def _filter(z, scale, top_k, top_p, min_p):
    """Set the logits that top-k, then top-p, then min-p drop to −inf; equal logits stay together."""
    V = z.shape[1]
    descending = z.sort(dim=1, descending=True).values
    top = descending[:, :1]
    k = torch.where(top_k == 0, V, top_k.clamp(max=V))[:, None]
    threshold = descending.gather(1, k - 1)
    E = torch.where(descending < threshold, 0, _masses(descending, top, scale))
    nucleus, _ = _nucleus(descending, E, E.sum(1, keepdim=True), top_p)
    threshold = torch.maximum(threshold, nucleus)
    frequent = _exp2((z - top) * scale) >= min_p.float()[:, None]
    return torch.where((z >= threshold) & frequent, z, -torch.inf)


def _filter_on_cpu(z, scale, top_k, top_p, min_p, few=FEW):
    """Return what `_filter` does, without what doesn't occur; the largest `few` logits are sorted, if these decide."""
    V = z.shape[1]
    few = min(V, max(few, int(top_k.clamp(max=V).max())))
    descending = z.topk(few).values
    top, off = descending[:, :1], top_k == 0
    threshold = descending.gather(1, torch.where(off, 1, top_k.clamp(max=few))[:, None] - 1)
    threshold.masked_fill_(off[:, None], -torch.inf)
    if bool((top_p != 1).any()):
        whole = _masses(z, top, scale).masked_fill_(z < threshold, 0).sum(1, keepdim=True)
        E = _masses(descending, top, scale).masked_fill_(descending < threshold, 0)
        nucleus, more = _nucleus(descending, E, whole, top_p)
        if few < V and bool(more.any()):
            return _filter_on_cpu(z, scale, top_k, top_p, min_p, V)
        threshold = torch.maximum(threshold, nucleus)
    kept = z >= threshold
    if bool((min_p != 0).any()):
        kept &= _exp2((z - top) * scale) >= min_p.float()[:, None]
    return z.masked_fill(~kept, -torch.inf)


def _masses(z, top, scale):
    """Return the integer masses of logits relative to the largest, int64."""
    return (_exp2((z - top) * scale) * 2.0**44).long()


def _nucleus(descending, E, whole, top_p):
    """Return the smallest logit [B, 1] that top-p keeps of sorted ones with masses E, and if it keeps all [B].

    whole [B, 1]: the mass of all logits, of which these may be the largest. Where top-p is off nothing is dropped.
    """
    off = (top_p == 1)[:, None]
    repeats = pad(descending[:, 1:] == descending[:, :-1], (1, 0))
    first_equal = torch.where(repeats, 0, torch.arange(E.shape[1], device=E.device)).cummax(1).values
    larger = (E.cumsum(1) - E).gather(1, first_equal)
    fraction = (torch.where(top_p < 1, top_p, 0.5) * 2.0**63).long() << 1
    kept = larger < multiply_high(fraction[:, None], whole)
    smallest = torch.where(kept, descending, descending[:, :1]).amin(1, keepdim=True)
    return smallest.masked_fill(off, -torch.inf), kept[:, -1] & ~off[:, 0]


def _softmax(z, scale):
    """Return the masses of logits [B, V], their sum taken as integers in tiles of 1,024 ids."""
    width = min(z.shape[1], TILE)  # a single tile needs no padding: what that adds weighs 0
    tiles = pad(z, (0, -z.shape[1] % width), value=-torch.inf).unflatten(1, (-1, width))
    tile_top = tiles.amax(2)
    top = tile_top.amax(1, keepdim=True)
    reference = torch.where(tile_top.isfinite(), tile_top, 0.0)
    S = (_exp2((tiles - reference[:, :, None]) * scale[:, :, None]) * 2.0**44).long().sum(2)
    Z = (S.double() * _exp2((tile_top - top) * scale).double()).long().sum(1, keepdim=True)
    return _exp2((z - top) * scale) * (1.0 / (Z.double() * 2.0**-44)).float()


@torch.library.custom_op("specnb::probabilities", mutates_args=())
def _operator(logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> Tensor:
    return _probabilities(logits, temperature, top_k, top_p, min_p)


@_operator.register_fake
def _(logits, temperature, top_k, top_p, min_p):
    return logits.new_empty(logits.shape, dtype=torch.float32)
