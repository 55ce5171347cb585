"""The token rule in PyTorch: accept a prefix draft by draft, and read one row pair; `match` is the same, without q."""

from __future__ import annotations

import torch
from torch.nn.functional import pad

from specnb.backends import torch_cpu, torch_words
from specnb.backends.torch_decision import decide
from specnb.backends.torch_drafts import gather, randomness, rows_at
from specnb.backends.torch_mass import masses, pick


def verify(draft, q, p, lengths, onehot, seed, position, uniforms):
    """Accept a prefix of each draft by u·q(x) < p(x), then pick the final token from (p − q)+ or from p."""
    if torch_words.on_cpu(p.device):
        return torch_cpu.verify(draft, q, p, lengths, onehot, seed, position, uniforms)
    B, G = draft.shape
    V = max(p.shape[2], 0 if q is None else q.shape[2])
    u, final_word, bad_u = randomness(seed, position, uniforms, B, G, p.device)
    known = draft.clamp(0, V - 1)
    q_x = None if q is None else gather(q, known)
    if q_x is not None and onehot is not None:
        q_x = q_x.masked_fill(onehot[:, None], 1.0)
    columns = torch.arange(G, device=p.device)
    n, x_n, status, tokens = decide(V, draft, gather(p, known), q_x, u, bad_u, lengths, columns)

    rejected = x_n != -1
    soft = torch.zeros_like(rejected) if q is None else rejected if onehot is None else rejected & ~onehot
    q_n = rows_at(q, n.clamp(max=G - 1)) if q is not None and G else None
    rows, flags = masses(rows_at(p, n), q_n, soft, point=x_n.masked_fill(soft, -1))
    token, more_flags = pick(rows, final_word)
    tokens = pad(tokens, (0, 1), value=-1).scatter_(1, n[:, None], token[:, None])
    return tokens, n, (status | flags | more_flags).int()
