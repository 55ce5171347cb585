"""The token rule on a CPU: PyTorch reads the rows, and NumPy, at half the cost, does the bookkeeping on views."""

from __future__ import annotations

import numpy as np
import torch

from specnb.backends.torch_decision import decide
from specnb.backends.torch_drafts import ACCEPTING, FINAL, rows_at
from specnb.backends.torch_mass import masses, pick, pick_one
from specnb.backends.torch_pick import LONG
from specnb.backends.torch_words import words


def verify(draft, q, p, lengths, onehot, seed, position, uniforms):
    """Accept a prefix of each draft by u·q(x) < p(x), then pick the final token from (p − q)+ or from p."""
    B, G = draft.shape
    V = max(p.shape[2], 0 if q is None else q.shape[2])
    ids = draft.numpy()
    known = np.clip(ids, 0, V - 1)
    q_x = None if q is None else _gather(q, known)
    if q_x is not None and onehot is not None:
        q_x[onehot.numpy()] = 1.0

    random = randomness(seed, position, uniforms, B, G)

    def each_final(n, subtracted, point):
        rows = enumerate(zip(n.tolist(), subtracted.tolist(), point.tolist(), random[1].tolist(), strict=True))
        decided = [
            pick_one(p[b, n_b], q[b, n_b] if q is not None and soft else None, x, word)
            for b, (n_b, soft, x, word) in rows
        ]
        return tuple(np.array(column) for column in zip(*decided, strict=True))

    def final(n, subtracted, point):
        n = torch.from_numpy(n)
        q_n = rows_at(q, n.clamp(max=G - 1)) if q is not None and G else None
        rows, flags = masses(rows_at(p, n), q_n, torch.from_numpy(subtracted), torch.from_numpy(point))
        token, more_flags = pick(rows, torch.from_numpy(random[1]))
        return token.numpy(), (flags | more_flags).numpy()

    how = each_final if p.shape[2] >= LONG else final
    return verdict(V, ids, _gather(p, known), q_x, lengths, onehot, random, how)


def verdict(V, draft, p_x, q_x, lengths, onehot, random, final):
    """Return what the token rule decides by the drafted tokens' own probabilities, NumPy's float64 [B, G].

    q_x: None if all drafts are one-hot. random: as from `randomness`. final(n, subtracted, point): tokens and status
    bits behind n [B] accepted drafts, where subtracted says from which p to take the row of q, and point at which
    id a 1 (−1: none).
    """
    (B, G), (u, _, bad_u) = draft.shape, random
    lengths, onehot = (a if a is None else a.numpy() for a in (lengths, onehot))
    with np.errstate(invalid="ignore"):
        n, x_n, status, accepted = decide(V, draft, p_x, q_x, u, bad_u, lengths, np.arange(G))
    subtracted = (x_n != -1) & (q_x is not None)
    subtracted = subtracted if onehot is None else subtracted & ~onehot
    token, flags = final(n, subtracted, np.where(subtracted, -1, x_n))
    tokens = np.full((B, G + 1), -1)
    tokens[:, :G] = accepted
    tokens[np.arange(B), n] = token
    status = (status | flags).astype(np.int32)
    return torch.from_numpy(tokens), torch.from_numpy(n), torch.from_numpy(status)


def randomness(seed, position, uniforms, B, G):
    """Return the accept uniforms float64 [B, G], the final token's word int64 [B] and which inputs are bad or None."""
    if uniforms is None:
        counters = [(i, ACCEPTING) for i in range(G)] + [(0, FINAL)]
        word = words(seed, position, counters, B, torch.device("cpu")).numpy()
        return (word[:, :G].view(np.uint64) >> np.uint64(11)) * 2.0**-53, word[:, G], None
    uniforms = uniforms.numpy()
    bad = ~((uniforms >= 0) & (uniforms < 1))
    valid = np.where(bad, np.where(uniforms >= 1, (2**53 - 1) * 2.0**-53, 0.0), uniforms)
    grid = (valid * 2.0**53).astype(np.int64)
    return grid[:, :G] * 2.0**-53, grid[:, G] << 11, bad


def _gather(rows, known):
    """Return float64 [B, G]: the probability of each drafted token (clamped to the vocabulary) in its row."""
    (B, G), V = known.shape, rows.shape[2]
    at = np.minimum(known, V - 1)
    values = rows[:, :G].gather(2, torch.from_numpy(at).view(B, G, 1)).view(B, G).double().numpy()
    return np.where(at == known, values, 0.0)
