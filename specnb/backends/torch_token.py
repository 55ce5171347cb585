"""The token rule in PyTorch: accept a prefix draft by draft, and read one row pair; `match` is the same, without q."""

from __future__ import annotations

import numpy as np
import torch
from torch.nn.functional import pad

from specnb.backends import torch_words
from specnb.backends.torch_drafts import gather, randomness, rows_at
from specnb.backends.torch_mass import masses, pick
from specnb.verdict import Status


def verify(draft, q, p, lengths, onehot, seed, position, uniforms):
    """Accept a prefix of each draft by u·q(x) < p(x), then pick the final token from (p − q)+ or from p."""
    B, G = draft.shape
    V = max(p.shape[2], 0 if q is None else q.shape[2])
    u, final_word, bad_u = randomness(seed, position, uniforms, B, G, p.device)
    known = draft.clamp(0, V - 1)
    q_x = None if q is None else gather(q, known)
    if q_x is not None and onehot is not None:
        q_x = q_x.masked_fill(onehot[:, None], 1.0)
    columns = torch.arange(G, device=p.device)
    small = (draft, gather(p, known), q_x, u, bad_u, lengths, columns)
    if torch_words.on_cpu(p.device):
        with np.errstate(invalid="ignore"):
            n, x_n, status, tokens = map(torch.from_numpy, _decide(V, *(a if a is None else a.numpy() for a in small)))
    else:
        n, x_n, status, tokens = _decide(V, *small)

    rejected = x_n != -1
    soft = torch.zeros_like(rejected) if q is None else rejected if onehot is None else rejected & ~onehot
    q_n = rows_at(q, n.clamp(max=G - 1)) if q is not None and G else None
    rows, flags = masses(rows_at(p, n), q_n, soft, point=x_n.masked_fill(soft, -1))
    token, more_flags = pick(rows, final_word)
    tokens = pad(tokens, (0, 1), value=-1).scatter_(1, n[:, None], token[:, None])
    return tokens, n, (status | flags | more_flags).int()


def _decide(V, draft, p_x, q_x, u, bad_u, lengths, columns):
    """Return the accepted counts n, the rejected drafts x_n (−1: none), status bits and the accepted tokens [B, G].

    Only operators and methods that tensors share with NumPy's arrays, which a CPU passes: each costs it less.
    """
    inside = (draft >= 0) & (draft < V)  # an id −1, the end of a draft, is not
    possible = inside if q_x is None else q_x > 0
    passes = inside & possible & ((u if q_x is None else u * q_x) < p_x)
    present = draft != -1
    if lengths is not None:
        counted = columns < lengths[:, None]
        passes, present = passes & counted, present & counted
    n = passes.cumprod(1).sum(1)

    accepted = columns < n[:, None]
    at_n = (columns == n[:, None]) & present
    seen = accepted | at_n
    finite = abs(p_x) < torch.inf
    status = (at_n & ~inside).any(1) * int(Status.OUT_OF_RANGE)
    if q_x is not None:
        finite = finite & (abs(q_x) < torch.inf)
        status = status | (at_n & inside & ~possible).any(1) * int(Status.IMPOSSIBLE)
    status = status | (seen & inside & ~finite).any(1) * int(Status.NONFINITE)
    if bad_u is not None:
        unusable = (bad_u[:, :-1] & seen).any(1) | bad_u[:, -1]
        status = status | unusable * int(Status.BAD_UNIFORM)
    x_n = ((draft + 1) * at_n).sum(1) - 1
    return n, x_n, status, (draft + 1) * accepted - 1
