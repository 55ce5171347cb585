"""Any rule by its law in PyTorch: the law's arithmetic on float64 tensors, and the verdict that it gives."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from specnb.arithmetic import Arithmetic
from specnb.backends.torch_drafts import emitted, randomness, read
from specnb.backends.torch_mass import masses, pick
from specnb.validation import SOUND, check_law, law_parts
from specnb.verdict import Status


def _of_tensors(function):
    """Return a function of float64 tensors that takes Python's numbers too."""

    def of_either(*values):
        device = next((value.device for value in values if isinstance(value, Tensor)), None)
        return function(*(torch.as_tensor(value, dtype=torch.float64, device=device) for value in values))

    return of_either


class _Ordered(Arithmetic):
    """The arithmetic of `specnb.arithmetic.ORDERED` on float64 tensors, bit for bit but for log and exp."""

    def sum(self, x):
        x = torch.where(abs(x) < 2.0**10, x, 0.0) * 2.0**30
        high = x.trunc()
        low = ((x - high) * 2.0**32).long().sum(-1)
        return (high.long().sum(-1).double() * 2.0**-30 + low.double() * 2.0**-62)[..., None]

    def at(self, rows, draft):
        inside = (draft >= 0) & (draft < rows.shape[-1])
        return rows.gather(-1, draft.where(inside, 0)[..., None])[..., 0].masked_fill(~inside, 0.0)

    def point(self, draft, rows):
        return (draft[..., None] == torch.arange(rows.shape[-1], device=rows.device)).to(rows.dtype)

    def ones(self, rows):
        return rows.new_ones((*rows.shape[:-2], 1))

    def join(self, parts, axis):
        return torch.cat(parts, axis)


ORDERED = _Ordered(
    min=_of_tensors(torch.minimum), max=_of_tensors(torch.maximum),
    where=_of_tensors(lambda x, a, b: torch.where(x > 0, a, b)),
    divide=_of_tensors(lambda a, b: torch.where(b != 0, a / b, 0.0)),
    number=float, log=torch.log, exp=torch.exp,
)  # fmt: skip


def verify(law, draft, q, p, lengths, onehot, seed, position, uniforms):
    """Keep draft i if u_i·P(n >= i) < P(n > i), then pick from the correction."""
    B, G = draft.shape
    u, final_word, bad_u = randomness(seed, position, uniforms, B, G, p.device)
    drafts = read(draft, q, p, lengths, onehot)
    law_of_n, correction, finite, sound = _law_of(law, draft, q, p, drafts)
    check_law("lengths", law_of_n, sound)
    possible = drafts.counted & drafts.inside & (drafts.q_x > 0)
    n = torch.minimum(_first_failure(law_of_n, u), possible.cumprod(1).sum(1))
    status = drafts.status(bad_u) | ~finite * int(Status.NONFINITE)
    correction = correction[torch.arange(B, device=n.device), n]
    check_law("correction", correction, sound & (status == 0))
    rows, _ = masses(correction)
    token, flags = pick(rows, final_word)
    status = status | flags
    return emitted(draft, n, token), n, status.int()


def _law_of(law, draft, q, p, drafts):
    """Return the law of n [B, G+1] (0 beyond a row's draft), the corrections [B, G+1, V], and what rows are [B].

    finite: whether all were. sound: whether all were laws, about.
    """
    B, G = draft.shape
    lengths = torch.zeros(B, G + 1, dtype=torch.float64, device=p.device)
    corrections = lengths.new_zeros(B, G + 1, drafts.V)
    finite, sound = torch.ones_like(drafts.onehot), torch.ones_like(drafts.onehot)
    for L in drafts.length.unique().tolist():
        rows = (drafts.length == L).nonzero()[:, 0]
        pairs = _row_pairs(draft[rows, :L], None if q is None else q[rows, :L], p[rows, : L + 1], drafts, rows)
        answer = law(draft[rows, :L], *pairs, ORDERED)
        lengths[rows, : L + 1], corrections[rows, : L + 1] = law_parts(answer, len(rows), L, drafts.V)
        finite[rows] = pairs[0].isfinite().all(2).all(1) & pairs[1].isfinite().all(2).all(1)
        sound[rows] = _sound(pairs[0]) & _sound(pairs[1])
    return lengths, corrections, finite, sound


def _sound(rows):
    """Tell of rows [b, N, V] whether all of a request's are laws, about."""
    return (abs(rows.sum(2) - 1) < SOUND).all(1)


def _row_pairs(draft, q, p, drafts, rows):
    """Return float64 q [b, L, V], one-hot where the draft is, and p [b, L+1, V], zero-extended to one vocabulary."""
    p = _widen(p, drafts.V)
    point = ORDERED.point(draft, p)
    return (point if q is None else torch.where(drafts.onehot[rows, None, None], point, _widen(q, drafts.V))), p


def _widen(rows, V):
    return pad(rows.double(), (0, V - rows.shape[-1]))


def _first_failure(law_of_n, u):
    """Return the first i with u_i·P(n >= i) >= P(n > i), for laws of n [B, G+1]; G if there is none."""
    G = u.shape[1]
    n = torch.full((len(law_of_n),), G, device=u.device)
    at_least = law_of_n[:, G]
    for i in reversed(range(G)):
        above, at_least = at_least, law_of_n[:, i] + at_least
        n = torch.where(u[:, i] * at_least < above, n, i)
    return n
