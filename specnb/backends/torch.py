"""The arithmetic contract, batched in PyTorch: no host sync on CUDA, one row pair read.

Nothing loops over rows but a CPU's few random words, which Python's integers make faster than tensors do.

Under `torch.compile` the whole verdict is one opaque operator, since fusing or contracting its float64
arithmetic would change tokens. Signatures and results are those of `specnb.backends.numpy`.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from specnb.backends import torch_words
from specnb.backends.torch_logits import probabilities as probabilities
from specnb.backends.torch_words import multiply_high, words
from specnb.verdict import Status

DRAFTING, ACCEPTING, FINAL = 0, 1, 2
BLOCK = 1024  # ids per partial sum: a token is found by a scan of the partial sums, then of one block
CHUNK = 2**17  # elements per pass on a CPU, so that the float64 temporaries stay in cache
_EXCESS = 2**31 - 2**20


def verify(draft, q, p, lengths, onehot, seed, position, uniforms):
    """Accept a prefix of each draft, then pick the final token; see `specnb.backends.numpy.verify`."""
    if not torch.compiler.is_compiling():
        return _verify(draft, q, p, lengths, onehot, seed, position, uniforms)
    return torch.ops.specnb.verify(draft, q, p, lengths, onehot, *_split(seed), *_split(position), uniforms)


def draw(probs, seed, position, index, purpose=DRAFTING):
    """Draw one token per row of probs [B, V] by its own word; −1 where there is no mass."""
    if not torch.compiler.is_compiling():
        return _draw(probs, seed, position, index, purpose)
    return torch.ops.specnb.draw(probs, *_split(seed), *_split(position), index, purpose)


def _draw(probs, seed, position, index, purpose):
    B, device = len(probs), probs.device
    if B == 0:
        return torch.empty(0, dtype=torch.int64, device=device)
    word = words(seed, position, [(index, purpose)], B, device)[:, 0]
    nothing = torch.full((B, 1), -1, device=device)
    return _pick(probs, None, nothing >= 0, word, nothing)[0]


def _verify(draft, q, p, lengths, onehot, seed, position, uniforms):
    B, G = draft.shape
    if B == 0:
        empty = torch.empty(0, dtype=torch.int64, device=p.device)
        return empty.expand(G + 1, 0).T, empty, empty.int()
    V = max(p.shape[2], 0 if q is None else q.shape[2])
    u, final_word, bad_u = _randomness(seed, position, uniforms, B, G, p.device)
    known = draft.clamp(0, V - 1)
    q_x = None if q is None else _gather(q, known)
    if q_x is not None and onehot is not None:
        q_x = q_x.masked_fill(onehot[:, None], 1.0)
    columns = torch.arange(G, device=p.device)
    small = (draft, _gather(p, known), q_x, u, bad_u, lengths, columns)
    if torch_words.on_cpu(p.device):
        with np.errstate(invalid="ignore"):
            n, x_n, status, tokens = map(torch.from_numpy, _decide(V, *(a if a is None else a.numpy() for a in small)))
    else:
        n, x_n, status, tokens = _decide(V, *small)

    rejected, inside = x_n != -1, x_n.clamp(0, V - 1) == x_n
    soft = torch.zeros_like(rejected) if q is None else rejected if onehot is None else rejected & ~onehot
    q_n = _rows_at(q, n.clamp(max=G - 1)) if q is not None and G else None
    left_out = x_n.masked_fill(soft | ~inside, -1)
    token, flags = _pick(_rows_at(p, n), q_n, soft[:, None], final_word, left_out[:, None])
    tokens = pad(tokens, (0, 1), value=-1).scatter_(1, n[:, None], token[:, None])
    return tokens, n, (status | flags).int()


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


def _pick(p, q, soft, word, left_out):
    """Return the final token and the status bits of each row, from its p [B, V], q [B, V'] and word [B].

    soft [B, 1] says which rows of q count; left_out [B, 1] is a rejected one-hot draft, −1 for none. After a
    one-hot rejection p(x) <= u < 1, so p(x) − 1 has no weight: leaving the token out is the same law.
    """
    on_cpu, status = torch_words.on_cpu(p.device), torch.zeros_like(word)
    if q is not None and not (on_cpu and bool(soft.all())):
        q = None if on_cpu and not bool(soft.any()) else q.masked_fill(~soft, 0)
    plain = on_cpu and _is_plain(p) and (q is None or _is_plain(q))
    if not plain:
        status |= ~p.isfinite().all(1) * int(Status.NONFINITE)
        status |= 0 if q is None else ~q.isfinite().all(1) * int(Status.NONFINITE)
    if q is not None and q.shape[1] < p.shape[1]:
        q = pad(q, (0, p.shape[1] - q.shape[1]))

    sums, high = _block_sums(p, q, left_out, plain)
    cumulative = sums.cumsum(1)
    empty = (cumulative[:, -1:] | high[:, None]) == 0  # a sum of 2^64 has wrapped around to 0
    if not on_cpu or bool(empty.any()):
        q = q if q is None else q.masked_fill(empty, 0)
        left_out = left_out.masked_fill(empty, -1)
        sums, high = _block_sums(p, q, left_out, plain)
        cumulative = sums.cumsum(1)
    total = cumulative[:, -1:]
    threshold = multiply_high(word[:, None], total)
    below = cumulative <= threshold
    threshold -= (below * sums).sum(1, keepdim=True)
    block = below.sum(1, keepdim=True)
    ids = block * BLOCK + torch.arange(BLOCK, device=p.device)
    known = ids.clamp(max=p.shape[1] - 1)
    w = _weights(p.gather(1, known), q if q is None else q.gather(1, known), plain)
    w = w.masked_fill_((ids != known) | (ids == left_out), 0)
    token = block[:, 0] * BLOCK + (w.cumsum(1) <= threshold).sum(1)
    excess, nothing = high >= _EXCESS, (total[:, 0] | high) == 0
    status |= torch.where(excess, int(Status.EXCESS_MASS), nothing * int(Status.NO_MASS))
    return token.masked_fill_(excess | nothing, -1), status


def _is_plain(rows):
    """Tell whether all rows are nonnegative with mass below 1.5: then no value and no sum needs a check."""
    return float(rows.amin()) >= 0 and float(rows.sum(1).amax()) < 1.5


def _weights(p, q, plain):
    """Return the integer masses trunc((p − q⁺)·2^62), 0 outside (0, 2); plain rows need no comparisons."""
    x = p.to(torch.float64, copy=True)
    if plain:
        return (x if q is None else x.sub_(q.double()).clamp_min_(0.0)).mul_(2.0**62).long()
    x = x if q is None else x.sub_(torch.where(q > 0, q, 0).double())
    return (torch.where((x > 0) & (x < 2), x, 0.0) * 2.0**62).long()


def _block_sums(p, q, left_out, plain):
    """Return the masses summed in blocks of ids, int64 [B, ceil(V/BLOCK)], and the sum of their high words [B].

    Plain rows can't be too heavy: their high words are not summed, and 0.
    """
    B, V = p.shape
    step = max(BLOCK, CHUNK // B // BLOCK * BLOCK) if torch_words.on_cpu(p.device) else -(-V // BLOCK) * BLOCK
    sums, high = [], torch.zeros(B, dtype=torch.int64, device=p.device)
    for start in range(0, V, step):
        columns = slice(start, min(start + step, V))
        w = _weights(p[:, columns], q if q is None else q[:, columns], plain)
        if not plain:
            high = high + (w >> 32).sum(1)
        whole = w.shape[1] // BLOCK * BLOCK
        if whole:
            sums.append(w[:, :whole].unflatten(1, (-1, BLOCK)).sum(2))
        if whole < w.shape[1]:
            sums.append(w[:, whole:].sum(1, keepdim=True))
    sums = torch.cat(sums, 1) if len(sums) > 1 else sums[0]
    if torch_words.on_cpu(p.device) and not bool((left_out >= 0).any()):
        return sums, high
    at = left_out.clamp(0, V - 1)
    w = _weights(p.gather(1, at), None, plain).masked_fill_(left_out != at, 0)
    return sums.scatter_add(1, at // BLOCK, -w), high if plain else high - (w >> 32)[:, 0]


def _randomness(seed, position, uniforms, B, G, device):
    """Return the accept uniforms float64 [B, G], the word of the final token [B] and which inputs are bad."""
    if uniforms is not None:
        bad = ~((uniforms >= 0) & (uniforms < 1))
        largest = (2**53 - 1) * 2.0**-53
        valid = torch.where(uniforms >= 1, largest, torch.where(bad, 0.0, uniforms))
        grid = (valid * 2.0**53).long()
        return grid[:, :G].double() * 2.0**-53, grid[:, G] << 11, bad
    word = words(seed, position, [(i, ACCEPTING) for i in range(G)] + [(0, FINAL)], B, device)
    return (word[:, :G] >> 11 & 2**53 - 1).double() * 2.0**-53, word[:, G], None


def _gather(rows, known):
    """Return float64 [B, G]: the probability of each drafted token (clamped to the vocabulary) in its row."""
    G, V = known.shape[1], rows.shape[2]
    at = known.clamp(max=V - 1)
    return rows[:, :G].gather(2, at[:, :, None])[:, :, 0].double().masked_fill_(at != known, 0.0)


def _rows_at(rows, n):
    """Return row n[b] of each request, [B, V]: the only whole rows that a verdict reads."""
    B, R, V = rows.shape
    if B == 1 and torch_words.on_cpu(rows.device):
        return rows[:, int(n)]  # without a copy
    if rows.stride(0) == R * rows.stride(1):
        return rows.view(B * R, V).index_select(0, torch.arange(0, B * R, R, device=rows.device) + n)
    return rows[torch.arange(B, device=rows.device), n]


@torch.library.custom_op("specnb::verify", mutates_args=())
def _verify_operator(
    draft: Tensor, q: Tensor | None, p: Tensor, lengths: Tensor | None, onehot: Tensor | None,
    seed: int, seeds: Tensor | None, position: int, positions: Tensor | None, uniforms: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    return _verify(draft, q, p, lengths, onehot, _join(seed, seeds), _join(position, positions), uniforms)


@_verify_operator.register_fake
def _(draft, q, p, lengths, onehot, seed, seeds, position, positions, uniforms):
    B, G = draft.shape
    counts = draft.new_empty(B)
    return draft.new_empty(B, G + 1), counts, counts.int()


@torch.library.custom_op("specnb::draw", mutates_args=())
def _draw_operator(
    probs: Tensor, seed: int, seeds: Tensor | None, position: int, positions: Tensor | None, index: int, purpose: int
) -> Tensor:
    return _draw(probs, _join(seed, seeds), _join(position, positions), index, purpose)


@_draw_operator.register_fake
def _(probs, seed, seeds, position, positions, index, purpose):
    return probs.new_empty(len(probs), dtype=torch.int64)


def _split(value):
    """Return an int or a tensor as the pair (int, tensor or None) that an operator's schema can name."""
    return (0, value) if isinstance(value, Tensor) else (value or 0, None)


def _join(value, tensor):
    return value if tensor is None else tensor
