"""What the token rule decides of drafts by the probabilities of the drafted tokens alone."""

from __future__ import annotations

import torch

from specnb.verdict import Status


def decide(V, draft, p_x, q_x, u, bad_u, lengths, columns):
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
