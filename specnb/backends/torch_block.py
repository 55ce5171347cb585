"""The block rule in PyTorch (Sun et al. 2024, arXiv:2403.10444); see `specnb.backends.numpy.verify_block`."""

from __future__ import annotations

import torch
from torch.nn.functional import pad

from specnb.backends import torch_words
from specnb.backends.torch_drafts import emitted, randomness, read, rows_at
from specnb.backends.torch_mass import masses, pick, total
from specnb.verdict import Status


def verify(draft, q, p, lengths, onehot, seed, position, uniforms):
    """Accept the longest prefix whose own test passes, then pick from (a_n·p − q)+ or from p."""
    B, G = draft.shape
    u, final_word, bad_u = randomness(seed, position, uniforms, B, G, p.device)
    drafts = read(draft, q, p, lengths, onehot)
    a = _chain(drafts)
    n, status = _last_success(draft, q, p, drafts, a, u)

    rejected = n < drafts.length
    x_n = pad(draft, (0, 1), value=-1).gather(1, n[:, None])[:, 0]
    scale = a.gather(1, n[:, None])[:, 0].masked_fill_(~rejected, 1.0)
    q_n = rows_at(q, n.clamp(max=G - 1)) if q is not None and G else None
    rows, flags = _residual(rows_at(p, n), q_n, x_n, rejected, drafts.onehot, scale)
    token, more_flags = pick(rows, final_word)
    status = status | flags | more_flags | drafts.status(bad_u)
    token = token.masked_fill_((status & int(Status.EXCESS_MASS)) != 0, -1)
    return emitted(draft, n, token), n, status.int()


def _chain(drafts):
    """Return a_0 = 1, a_i = min(1, a_{i−1}·p/q) [B, G+1], 0 unless both are positive; a NaN is never accepted."""
    p_x, q_x = drafts.p_x, drafts.q_x
    possible = drafts.counted & drafts.inside & (p_x > 0) & (q_x > 0)
    a = [torch.ones(len(p_x), dtype=torch.float64, device=p_x.device)]
    for i in range(p_x.shape[1]):
        ratio = (a[i] * p_x[:, i] / q_x[:, i]).clamp_(max=1.0)
        a.append(torch.where(possible[:, i] & (ratio > 0), ratio, 0.0))
    return torch.stack(a, 1)


def _last_success(draft, q, p, drafts, a, u):
    """Return the last i whose test passes, u_i < h_i, else 0, and the status bits of the rows that the tests read.

    From the last test to the first, since those before a success decide nothing: a CPU skips their sums. A test with
    a_i = 0 or 1 needs no sum either: h_i is a_i.
    """
    length, n, status = drafts.length, torch.zeros_like(drafts.length), torch.zeros_like(drafts.length)
    longest = int(length.max()) if torch_words.on_cpu(p.device) else draft.shape[1]
    for i in range(longest, 0, -1):
        a_i, success = a[:, i], a[:, i]
        if i < longest:
            more = length > i  # a draft's last test has no row behind it
            q_i = q if q is None else q[:, i]
            rows, flags = _residual(p[:, i], q_i, draft[:, i], more, drafts.onehot, a_i)
            mass, more_flags = total(rows, wanted=more & (n == 0) & (a_i > 0) & (a_i < 1))
            status |= (flags | more_flags).masked_fill_(~more, 0)
            whole = mass + (1 - a_i)
            success = torch.where(more & (whole > 0), mass / whole, a_i)
        n = torch.where((n == 0) & (length >= i) & (u[:, i - 1] < success), i, n)
    return n, status


def _residual(p_n, q_n, x_n, subtracted, onehot, scale):
    """Return the masses of (scale·p − q)+, where q is one-hot at x or, not to be subtracted, 0; and status bits."""
    return masses(p_n, q_n, subtracted & ~onehot, x_n.masked_fill(~(subtracted & onehot), -1), scale)
