"""The token rule from logits of a long vocabulary on a CPU: rows are read up to the first rejection, and no further.

Whether u·q(x) < p(x) seldom hangs on the last digit, so a rough sum of exponentials, then a softmax, each with a bound
on its error, tell it for most drafts; a bonus is mostly told by PyTorch's own exp2. The contract's arithmetic, which
a CPU does slowly, decides whatever these leave in doubt, and makes the row pairs of corrections.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from specnb.backends import torch_cpu, torch_pick
from specnb.backends.bounds import NEGLIGIBLE
from specnb.backends.torch_drafts import effective_lengths
from specnb.backends.torch_logits import exponents, probabilities, row_of
from specnb.backends.torch_mass import pick_one

LOG2_E = 1.4426950408889634
CHORD = 1.0615
"""How far 1 + f may lie above 2^f for 0 <= f < 1: at most by a factor 1.06148."""


class Side(NamedTuple):
    """One model's logits [B, R, V] and how they are sampled: temperature, top_k, top_p and min_p, each [B]."""

    logits: Tensor
    parameters: tuple[Tensor, ...]

    def request(self, b):
        """Return the same of one request."""
        temperature, *filters = (values[b].item() for values in self.parameters)
        simple = temperature > 0 and filters == [0, 1, 0]
        return Request(self.logits[b], temperature if simple else None, [v[b : b + 1] for v in self.parameters], {})


class Request(NamedTuple):
    """One request's logits [R, V], its temperature (None: 0, or a filter follows) and its parameters, each [1].

    rows: those that have been made, since a draft in doubt needs its row before the correction does.
    """

    logits: Tensor
    temperature: float | None
    parameters: list[Tensor]
    rows: dict[int, Tensor]

    def row(self, i):
        """Return the probabilities of row i as the contract has them, float32 [V]; NaN in a dead row."""
        if i not in self.rows:
            self.rows[i] = self._made(i)
        return self.rows[i]

    def _made(self, i):
        if self.temperature is not None:
            return row_of(self.logits[i], self.temperature)
        return probabilities(self.logits[i : i + 1], *self.parameters)[0]


def verify(draft, y, z, lengths, onehot, seed, position, uniforms):
    """Accept a prefix of each draft by u·q(x) < p(x), then pick from (p − q)+ or p; y (or None) and z are sides."""
    B, G = draft.shape
    V = max(side.logits.shape[2] for side in (y, z) if side is not None)
    random = u, word, _ = torch_cpu.randomness(seed, position, uniforms, B, G)
    soft = [True] * B if onehot is None else (~onehot).tolist()
    pairs = [(y.request(b) if y is not None and soft[b] else None, z.request(b)) for b in range(B)]
    p_x, q_x = np.zeros((B, G)), np.ones((B, G))
    for b, length in enumerate(effective_lengths(draft, lengths).tolist()):
        drafts = zip(range(length), draft[b].tolist(), u[b].tolist(), strict=False)
        for i, p, q in _drafted(drafts, *pairs[b], V):
            p_x[b, i], q_x[b, i] = p, q

    def final(n, subtracted, point):
        rows = zip(pairs, n.tolist(), subtracted.tolist(), point.tolist(), word.tolist(), strict=True)
        decided = [_final(*pair, *row) for pair, *row in rows]
        return tuple(np.array(column) for column in zip(*decided, strict=True))

    return torch_cpu.verdict(V, draft.numpy(), p_x, None if y is None else q_x, lengths, onehot, random, final)


def _drafted(drafts, y, z, V):
    """Yield (i, p(x), q(x)) of a request's drafts (i, x, u) up to the first rejection, as exact as u·q < p needs.

    y: None if its drafts are one-hot. V: the wider vocabulary.
    """
    for i, x, u in drafts:
        if not 0 <= x < V:
            return
        p, q = _compared(i, x, u, y, z)
        yield i, p, q
        if not u * q < p:
            return


def _compared(i, x, u, y, z):
    """Return numbers p and q for which u·q < p, and q > 0, are what they are for p(x) and q(x) of the contract."""
    by_temperature = z.temperature is not None and (y is None or y.temperature is not None)
    for bounds in (_rough, _close, _exact) if by_temperature else (_exact,):
        low_p, high_p = bounds(z, i, x)
        low_q, high_q = (1.0, 1.0) if y is None else bounds(y, i, x)
        if low_q > 0 and u * high_q < low_p:
            return low_p, high_q
        if low_q > 0 and u * low_q >= high_p:
            return high_p, low_q
    return low_p, low_q  # both exact: q is 0, or one is a NaN


def _exact(request, i, x):
    """Return the probability of x in row i, twice; 0 for an id that the row doesn't have."""
    value = request.row(i)[x].item() if x < request.logits.shape[1] else 0.0
    return value, value


def _close(request, i, x):
    """Return bounds of the probability of x from a softmax."""
    V, row = request.logits.shape[1], request.logits[i]
    if x >= V:
        return 0.0, 0.0
    if request.temperature != 1:
        row = row.float()
        row = (row - row.amax()) * (1 / request.temperature)
    value, error = torch.softmax(row, 0, dtype=torch.float32)[x].item(), _sum_error(V)
    return value * (1 - error) - NEGLIGIBLE, value * (1 + error) + NEGLIGIBLE


def _rough(request, i, x):
    """Return wider bounds from a sum of (1 + f)·2^k for 2^(k + f), which float32 has the bits of 127 + k + f for."""
    V, row, scale = request.logits.shape[1], request.logits[i].float(), LOG2_E / request.temperature
    least, top = (one.item() for one in row.aminmax())
    if x >= V or not abs(top) * scale < 2**12:  # beyond, float32 has no more than a thousandth of an octave
        return 0.0, math.inf
    bits = torch.add(torch.tensor((127 - top * scale) * 2.0**23), row, alpha=scale * 2.0**23)
    bits = bits if (top - least) * scale < 126 else bits.relu_()
    largest, error = bits.int().view(torch.float32).sum().item(), _sum_error(V)
    value = 2.0 ** ((row[x].item() - top) * scale) / largest
    return value * (1 - error) - NEGLIGIBLE, value * CHORD * (1 + error) + NEGLIGIBLE


def _sum_error(V):
    """Return a bound of the relative error of a float32 sum of V nonnegative numbers, with what their making adds.

    V·2^-24 in any order, and 2^-10 for arguments, exponentials and products, where some 2^-15 would be enough for a
    softmax, and 2^-11 for the bits.
    """
    return (V + 2**14) * 2.0**-24


def _final(y, z, n, subtracted, point, word):
    """Return the token that a word picks behind n accepted drafts of a request, and status bits."""
    if z.temperature is not None and not subtracted and point < 0:
        token = torch_pick.likely(exponents(z.logits[n], z.temperature), word)
        if token is not None:
            return token, 0
    p_n, q_n = z.row(n), y.row(n) if subtracted else None
    token = torch_pick.certain(p_n, q_n, point, None, word)  # None also for a NaN
    return pick_one(p_n, q_n, point, word) if token is None else (token, 0)
