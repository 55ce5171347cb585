"""The arithmetic contract, batched in PyTorch: no loop over rows, no host sync on CUDA, one row pair read.

Under `torch.compile` the whole verdict is one opaque operator, since fusing or contracting its float64
arithmetic would change tokens. Signatures and results are those of `specnb.backends.numpy`.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from specnb.backends.philox import philox_word
from specnb.verdict import Status

DRAFTING, ACCEPTING, FINAL = 0, 1, 2
BLOCK = 1024  # ids per partial sum: a token is found by a scan of the partial sums, then of one block
CHUNK = 2**17  # elements per pass on a CPU, so that the float64 temporaries stay in cache
TILE = 1024  # ids per tile of the softmax mass; part of the contract
FEW = 64  # up to so many words on a CPU, Python's integers are faster than tensors
_EXCESS = 2**31 - 2**20
_LOW32 = 0xFFFFFFFF
_LOG2_E = 1.4426950408889634
_EXP2 = (1.0, 0.6931471824645996, 0.24022650718688965, 0.05550327152013779, 0.009618056938052177,
         0.0013400427997112274, 0.00015461444854736328)  # fmt: skip


def verify(draft, q, p, lengths, onehot, seed, position, uniforms):
    """Accept a prefix of each draft, then pick the final token; see `specnb.backends.numpy.verify`."""
    if not torch.compiler.is_compiling():
        return _verify(draft, q, p, lengths, onehot, seed, position, uniforms)
    return torch.ops.specnb.verify(
        draft, q, p, lengths, onehot, *_split(seed), *_split(position), uniforms
    )


def draw(probs, seed, position, index, purpose=DRAFTING):
    """Draw one token per row of probs [B, V] by its own word; −1 where there is no mass."""
    B, device = len(probs), probs.device
    if B == 0:
        return torch.empty(0, dtype=torch.int64, device=device)
    key, stream = _key_and_stream(seed, B, device)
    word = philox(key, position, index, purpose, stream, device).expand(B)
    nothing = torch.full((B, 1), -1, device=device)
    return _pick(probs, None, nothing >= 0, word, nothing)[0]


def probabilities(logits, temperature, top_k, top_p, min_p):
    """Return the processed distributions of logits; see `specnb.backends.numpy.probabilities`."""
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


def _verify(draft, q, p, lengths, onehot, seed, position, uniforms):
    B, G = draft.shape
    if B == 0:
        empty = torch.empty(0, dtype=torch.int64, device=p.device)
        return empty.expand(G + 1, 0).T, empty, empty.int()
    V = max(p.shape[2], 0 if q is None else q.shape[2])
    accept_u, final_word, bad_u = _randomness(seed, position, uniforms, B, G, p.device)
    known = draft.clamp(0, V - 1)
    inside = known == draft
    p_x = _gather(p, known)
    q_x = None if q is None else _gather(q, known)
    if q_x is not None and onehot is not None:
        q_x = q_x.masked_fill(onehot[:, None], 1.0)
    passes = accept_u < p_x if q_x is None else (accept_u * q_x < p_x) & (q_x > 0)
    passes &= inside  # an id −1, the end of a draft, is not inside
    if lengths is not None:
        passes &= torch.arange(G, device=p.device) < lengths[:, None]
    n = passes.cumprod(1).sum(1)

    at_n = n[:, None]
    tokens = pad(draft, (0, 1), value=-1)
    x_n = tokens.gather(1, at_n)
    if lengths is not None:
        x_n = x_n.masked_fill(at_n >= lengths[:, None], -1)
    rejected, inside_n = x_n != -1, x_n.clamp(0, V - 1) == x_n
    soft = torch.zeros_like(rejected) if q is None else rejected if onehot is None else rejected & ~onehot[:, None]
    q_n = _rows_at(q, n.clamp(max=G - 1)) if q is not None and G else None
    token, status = _pick(_rows_at(p, n), q_n, soft, final_word, x_n.masked_fill(soft | ~inside_n, -1))

    columns = torch.arange(G + 1, device=p.device)
    seen = (columns < at_n + rejected)[:, :G] & inside
    status |= _any(~p_x.isfinite() & seen) * int(Status.NONFINITE)
    status |= (rejected & ~inside_n)[:, 0] * int(Status.OUT_OF_RANGE)
    if q_x is not None:
        status |= _any(~q_x.isfinite() & seen) * int(Status.NONFINITE)
        status |= _any(~(q_x > 0) & seen) * int(Status.IMPOSSIBLE)
    if bad_u is not None:
        status |= _any(bad_u & (columns < at_n + rejected) | bad_u & (columns == G)) * int(Status.BAD_UNIFORM)
    tokens = tokens.masked_fill_(columns > at_n, -1).scatter_(1, at_n, token[:, None])
    return tokens, n, status.int()


def _pick(p, q, soft, word, left_out):
    """Return the final token and the status bits of each row, from its p [B, V], q [B, V'] and word [B].

    soft [B, 1] says which rows of q count; left_out [B, 1] is a rejected one-hot draft, −1 for none. After a
    one-hot rejection p(x) <= u < 1, so p(x) − 1 has no weight: leaving the token out is the same law.
    """
    on_cpu, status = p.device.type == "cpu", torch.zeros_like(word)
    if q is not None and not (on_cpu and bool(soft.all())):
        q = None if on_cpu and not bool(soft.any()) else q.masked_fill(~soft, 0)
    plain = on_cpu and _is_plain(p) and (q is None or _is_plain(q))
    if not plain:
        status |= ~p.isfinite().all(1) * int(Status.NONFINITE)
        status |= 0 if q is None else ~q.isfinite().all(1) * int(Status.NONFINITE)
    if q is not None and q.shape[1] < p.shape[1]:
        q = pad(q, (0, p.shape[1] - q.shape[1]))

    sums, high = _block_sums(p, q, left_out, plain)
    empty = sums.sum(1, keepdim=True) == 0
    if not on_cpu or bool((empty & (soft | (left_out >= 0))).any()):
        q = q if q is None else q.masked_fill(empty, 0)
        left_out = left_out.masked_fill(empty, -1)
        sums, high = _block_sums(p, q, left_out, plain)

    cumulative = sums.cumsum(1)
    total = cumulative[:, -1:]
    threshold = multiply_high(word[:, None], total)
    block = (cumulative <= threshold).sum(1, keepdim=True).clamp_(max=sums.shape[1] - 1)
    threshold -= cumulative.gather(1, block) - sums.gather(1, block)
    ids = block * BLOCK + torch.arange(BLOCK, device=p.device)
    known = ids.clamp(max=p.shape[1] - 1)
    w = _weights(p.gather(1, known), q if q is None else q.gather(1, known), plain)
    w = w.masked_fill_((ids != known) | (ids == left_out), 0)
    token = block[:, 0] * BLOCK + (w.cumsum(1) <= threshold).sum(1)
    excess, nothing = high >= _EXCESS, total[:, 0] == 0
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
    """Return the masses summed in blocks of ids, int64 [B, ceil(V/BLOCK)], and the sum of their high words [B]."""
    B, V = p.shape
    step = max(BLOCK, CHUNK // B // BLOCK * BLOCK) if p.device.type == "cpu" else -(-V // BLOCK) * BLOCK
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
    if p.device.type == "cpu" and not bool((left_out >= 0).any()):
        return sums, high
    at = left_out.clamp(0, V - 1)
    w = _weights(p.gather(1, at), None, plain).masked_fill_(left_out != at, 0)
    return sums.scatter_add(1, at // BLOCK, -w), high - (w >> 32)[:, 0]


def philox(seed, position, index, purpose, stream, device):
    """Return Philox4x32-10 words as int64 bit patterns; arguments are ints or tensors that broadcast."""
    inputs = (seed, position, index, purpose, stream)
    # torch.full fills on the device, where torch.tensor would copy from the host and wait.
    inputs = [a if isinstance(a, Tensor) else torch.full((), a, device=device) for a in inputs]
    seed, *counters = torch.broadcast_tensors(*inputs)
    if device.type == "cpu" and seed.numel() <= FEW:
        words = map(_signed, map(philox_word, *(a.flatten().tolist() for a in (seed, *counters))))
        return torch.tensor(list(words), dtype=torch.int64).view(seed.shape)
    c0, c1, c2, c3 = (c & _LOW32 for c in counters)
    even, odd = torch.stack((c0, c2)), torch.stack((c1, c3))
    shape = (2,) + (1,) * seed.ndim
    factors = _two_constants(0xD2511F53, 0xCD9E8D57, device).view(shape)
    weyl = _two_constants(0x9E3779B9, 0xBB67AE85, device).view(shape)
    key = torch.stack((seed & _LOW32, seed >> 32))
    for _ in range(10):
        product = even * factors
        even = (product >> 32 & _LOW32).flip(0) ^ odd ^ key
        odd = (product & _LOW32).flip(0)
        key = (key + weyl) & _LOW32
    return even[0] << 32 | odd[0]


def _two_constants(a, b, device):
    return torch.arange(2, device=device) * (b - a) + a


def multiply_high(a, b):
    """Return the high 64 bits of a·b, a an unsigned 64-bit pattern, 0 <= b < 2^63."""
    if a.device.type == "cpu" and a.numel() <= FEW:
        products = [(x & 2**64 - 1) * y >> 64 for x, y in zip(a.flatten().tolist(), b.flatten().tolist(), strict=True)]
        return torch.tensor(products, dtype=torch.int64).view(a.shape)
    a0, a1, b0, b1 = a & _LOW32, a >> 32 & _LOW32, b & _LOW32, b >> 32
    middle = a1 * b0 + ((a0 * b0) >> 32 & _LOW32)
    carry = (middle & _LOW32) + a0 * b1
    return a1 * b1 + (middle >> 32 & _LOW32) + (carry >> 32 & _LOW32)


def _signed(word):
    return word - 2**64 if word >> 63 else word


def _key_and_stream(seed, B, device):
    """Return the key and stream of each row: one seed for a batch numbers its rows, a tensor is all keys."""
    return (seed, 0) if isinstance(seed, Tensor) else (seed, torch.arange(B, device=device))


def _randomness(seed, position, uniforms, B, G, device):
    """Return the accept uniforms float64 [B, G], the word of the final token [B] and which inputs are bad."""
    if uniforms is not None:
        bad = ~((uniforms >= 0) & (uniforms < 1))
        largest = (2**53 - 1) * 2.0**-53
        valid = torch.where(uniforms >= 1, largest, torch.where(bad, 0.0, uniforms))
        grid = (valid * 2.0**53).long()
        return grid[:, :G].double() * 2.0**-53, grid[:, G] << 11, bad
    key, stream = _key_and_stream(seed, B, device)
    key, stream, position = (a[:, None] if isinstance(a, Tensor) else a for a in (key, stream, position))
    index = torch.arange(G + 1, device=device)
    final = index == G
    purpose = torch.where(final, FINAL, ACCEPTING)
    words = philox(key, position, index.masked_fill(final, 0), purpose, stream, device).expand(B, G + 1)
    return (words[:, :G] >> 11 & 2**53 - 1).double() * 2.0**-53, words[:, G], None


def _gather(rows, known):
    """Return float64 [B, G]: the probability of each drafted token (clamped to the vocabulary) in its row."""
    G, V = known.shape[1], rows.shape[2]
    at = known.clamp(max=V - 1)
    return rows[:, :G].gather(2, at[:, :, None])[:, :, 0].double().masked_fill_(at != known, 0.0)


def _any(flags):
    return flags.any(1).long()


def _rows_at(rows, n):
    """Return row n[b] of each request, a copy [B, V]: the only whole rows that a verdict reads."""
    B, R, V = rows.shape
    if rows.stride(0) == R * rows.stride(1):
        return rows.view(B * R, V).index_select(0, torch.arange(0, B * R, R, device=rows.device) + n)
    return rows[torch.arange(B, device=rows.device), n]


def _exp2(t):
    """Return 2^t in float32 for t <= 0, in the contract's arithmetic."""
    magic = 1.5 * 2**23
    clamped = t.clamp(min=-127.0)
    k = (clamped + magic) - magic
    f = clamped - k
    value = torch.full_like(f, _EXP2[6])
    for coefficient in _EXP2[5::-1]:
        value = value * f + coefficient
    power = ((k.int() + 127) << 23).view(torch.float32)
    return torch.where(t < -100, 0.0, value * power)


def _filter(z, scale, top_k, top_p, min_p):
    """Set the logits that top-k, then top-p, then min-p drop to −inf; equal logits stay together."""
    on_cpu = z.device.type == "cpu"
    if on_cpu and bool((top_k == 0).all() & (top_p == 1).all() & (min_p == 0).all()):
        return z
    V = z.shape[1]
    descending = z.sort(dim=1, descending=True).values
    top = descending[:, :1]
    E = (_exp2((descending - top) * scale) * 2.0**44).long()
    k = torch.where(top_k == 0, V, top_k.clamp(max=V))[:, None]
    threshold = descending.gather(1, k - 1)
    E = torch.where(descending < threshold, 0, E)

    cumulative = E.cumsum(1)
    repeats = pad(descending[:, 1:] == descending[:, :-1], (1, 0))
    first_equal = torch.where(repeats, 0, torch.arange(V, device=z.device)).cummax(1).values
    larger = (cumulative - E).gather(1, first_equal)
    fraction = (torch.where(top_p < 1, top_p, 0.5) * 2.0**63).long() << 1
    nucleus = (larger < multiply_high(fraction[:, None], cumulative[:, -1:])) | (top_p == 1)[:, None]
    in_nucleus = torch.where(nucleus, descending, top).amin(1, keepdim=True)
    threshold = torch.maximum(threshold, in_nucleus)

    frequent = _exp2((z - top) * scale) >= min_p.float()[:, None]
    return torch.where((z >= threshold) & frequent, z, -torch.inf)


def _softmax(z, scale):
    """Return the masses of logits [B, V], their sum taken as integers in tiles of 1,024 ids."""
    tiles = pad(z, (0, -z.shape[1] % TILE), value=-torch.inf).unflatten(1, (-1, TILE))
    tile_top = tiles.amax(2)
    top = tile_top.amax(1, keepdim=True)
    reference = torch.where(tile_top.isfinite(), tile_top, 0.0)
    S = (_exp2((tiles - reference[:, :, None]) * scale[:, :, None]) * 2.0**44).long().sum(2)
    Z = (S.double() * _exp2((tile_top - top) * scale).double()).long().sum(1, keepdim=True)
    return _exp2((z - top) * scale) * (1.0 / (Z.double() * 2.0**-44)).float()


def _split(value):
    """Return an int or a tensor as the pair (int, tensor or None) that an operator's schema can name."""
    return (0, value) if isinstance(value, Tensor) else (value or 0, None)


@torch.library.custom_op("specnb::verify", mutates_args=())
def _operator(
    draft: Tensor, q: Tensor | None, p: Tensor, lengths: Tensor | None, onehot: Tensor | None,
    seed: int, seeds: Tensor | None, position: int, positions: Tensor | None, uniforms: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    seed_or_seeds, start = (seed if seeds is None else seeds), (position if positions is None else positions)
    return _verify(draft, q, p, lengths, onehot, seed_or_seeds, start, uniforms)


@_operator.register_fake
def _(draft, q, p, lengths, onehot, seed, seeds, position, positions, uniforms):
    B, G = draft.shape
    counts = draft.new_empty(B)
    return draft.new_empty(B, G + 1), counts, counts.int()
