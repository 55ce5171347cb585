"""What a verdict reads of a batch of drafts in PyTorch: each drafted token's probabilities, whole rows, uniforms."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from specnb.backends import torch_words
from specnb.backends.torch_words import words
from specnb.verdict import Status

ACCEPTING, FINAL = 1, 2


class Drafts(NamedTuple):
    """A batch of drafts with each drafted token's own probabilities; shapes [B, G] and [B]."""

    V: int
    length: Tensor
    onehot: Tensor
    counted: Tensor
    inside: Tensor
    p_x: Tensor
    q_x: Tensor

    def status(self, bad_u):
        """Return the status bits [B] of all drafted tokens that count, of their probabilities and of the uniforms."""
        seen = self.counted & self.inside
        strange = seen & ~(self.p_x.isfinite() & self.q_x.isfinite())
        status = strange.any(1) * int(Status.NONFINITE)
        status = status | (seen & ~(self.q_x > 0)).any(1) * int(Status.IMPOSSIBLE)
        status = status | (self.counted & ~self.inside).any(1) * int(Status.OUT_OF_RANGE)
        if bad_u is None:
            return status
        return status | ((bad_u[:, :-1] & self.counted).any(1) | bad_u[:, -1]) * int(Status.BAD_UNIFORM)


def read(draft, q, p, lengths, onehot):
    """Gather what every rule reads of a batch; q = None makes all drafts one-hot."""
    V = max(p.shape[2], 0 if q is None else q.shape[2])
    if q is None or onehot is None:
        onehot = torch.full((len(draft),), q is None, device=p.device)
    length = effective_lengths(draft, lengths)
    counted = torch.arange(draft.shape[1], device=p.device) < length[:, None]
    inside, known = (draft >= 0) & (draft < V), draft.clamp(0, V - 1)
    p_x = gather(p, known)
    q_x = torch.ones_like(p_x) if q is None else gather(q, known).masked_fill_(onehot[:, None], 1.0)
    return Drafts(V, length, onehot, counted, inside, p_x, q_x)


def effective_lengths(draft, lengths):
    """Return how many drafts of each row count: up to its length and its first id −1."""
    length = (draft != -1).cumprod(1).sum(1)
    return length if lengths is None else length.minimum(lengths.clamp(0, draft.shape[1]))


def gather(rows, known):
    """Return float64 [B, G]: the probability of each drafted token (clamped to the vocabulary) in its row."""
    G, V = known.shape[1], rows.shape[2]
    at = known.clamp(max=V - 1)
    return rows[:, :G].gather(2, at[:, :, None])[:, :, 0].double().masked_fill_(at != known, 0.0)


def rows_at(rows, n):
    """Return row n[b] of each request, [B, V]."""
    B, R, V = rows.shape
    if B == 1 and torch_words.on_cpu(rows.device):
        return rows[:, int(n)]  # without a copy
    if rows.stride(0) == R * rows.stride(1):
        return rows.view(B * R, V).index_select(0, torch.arange(0, B * R, R, device=rows.device) + n)
    return rows[torch.arange(B, device=rows.device), n]


def randomness(seed, position, uniforms, B, G, device):
    """Return the accept uniforms float64 [B, G], the word of the final token [B] and which inputs are bad."""
    if uniforms is not None:
        bad = ~((uniforms >= 0) & (uniforms < 1))
        largest = (2**53 - 1) * 2.0**-53
        valid = torch.where(uniforms >= 1, largest, torch.where(bad, 0.0, uniforms))
        grid = (valid * 2.0**53).long()
        return grid[:, :G].double() * 2.0**-53, grid[:, G] << 11, bad
    word = words(seed, position, [(i, ACCEPTING) for i in range(G)] + [(0, FINAL)], B, device)
    return (word[:, :G] >> 11 & 2**53 - 1).double() * 2.0**-53, word[:, G], None


def emitted(draft, n, token):
    """Return tokens [B, G+1]: n accepted drafts, the final token, then −1."""
    kept = torch.arange(draft.shape[1], device=draft.device) < n[:, None]
    return pad(draft.masked_fill(~kept, -1), (0, 1), value=-1).scatter_(1, n[:, None], token[:, None])
