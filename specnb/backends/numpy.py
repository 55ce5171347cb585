"""The arithmetic contract, version 1, written to be read.

The other backends are independent translations of this file and return the same bits. Everything that
decides a token is float64 arithmetic without fusion, or integer arithmetic, which has no order.
"""

from __future__ import annotations

import numpy as np

from specnb.backends.philox import FEW, few_high_products, few_words
from specnb.verdict import Status

DRAFTING, ACCEPTING, FINAL = 0, 1, 2
"""Purposes of a random word: no word serves two of them."""

TILE = 1024
"""Ids per tile of the softmax mass; part of the contract, since float64 sums are taken per tile."""

CHUNK = 2**15
"""Logits per pass, so that a core's cache holds the temporaries."""

_LOW32 = np.uint64(0xFFFFFFFF)
_SHIFT32 = np.uint64(32)
_EXCESS = 2**31 - 2**20
_FIXED = np.float32(2**44)
LOG2_E = np.float64(1.4426950408889634)
_EXP2 = np.array(
    [1.0, 0.6931471824645996, 0.24022650718688965, 0.05550327152013779, 0.009618056938052177,
     0.0013400427997112274, 0.00015461444854736328], np.float32,
)  # fmt: skip


def words(seed, position, counters, B):
    """Return the 64-bit random words [B, n] of B requests, for n pairs (index, purpose).

    seed and position are ints or int64 [B]; one seed for a batch numbers its rows by stream, seeds have stream 0.
    """
    if B * len(counters) <= FEW:
        return np.array(few_words(seed, position, counters, B), np.uint64).reshape(B, len(counters))
    stream = np.arange(B)[:, None] if np.ndim(seed) == 0 else 0
    seed, position = (np.broadcast_to(a, B)[:, None] for a in (seed, position))
    index, purpose = np.array(counters).T
    return philox(seed, position, index, purpose, stream)


def philox(seed, position, index, purpose, stream):
    """Return the words of Philox4x32-10 (Salmon et al. 2011), one per broadcast element.

    seed: the key, 0 <= seed < 2^63; the counter is (position mod 2^32, index, purpose, stream).
    """
    counters = [np.asarray(word).astype(np.uint64) & _LOW32 for word in (position, index, purpose, stream)]
    c0, c1, c2, c3 = np.broadcast_arrays(*counters)
    seed = np.asarray(seed).astype(np.uint64)
    key0, key1 = seed & _LOW32, seed >> _SHIFT32
    for _ in range(10):
        product0, product1 = c0 * np.uint64(0xD2511F53), c2 * np.uint64(0xCD9E8D57)
        c0, c2 = (product1 >> _SHIFT32) ^ c1 ^ key0, (product0 >> _SHIFT32) ^ c3 ^ key1
        c1, c3 = product1 & _LOW32, product0 & _LOW32
        key0, key1 = (key0 + np.uint64(0x9E3779B9)) & _LOW32, (key1 + np.uint64(0xBB67AE85)) & _LOW32
    return c0 << _SHIFT32 | c1


def multiply_high(a, b):
    """Return the high 64 bits of the 128-bit products of unsigned 64-bit integers [B]."""
    if len(a) <= FEW:
        return np.array(few_high_products(a.tolist(), b.tolist()), np.uint64)
    a0, a1, b0, b1 = a & _LOW32, a >> _SHIFT32, b & _LOW32, b >> _SHIFT32
    middle = a1 * b0 + (a0 * b0 >> _SHIFT32)
    carry = (middle & _LOW32) + a0 * b1
    return a1 * b1 + (middle >> _SHIFT32) + (carry >> _SHIFT32)


def weights(x):
    """Return the integer masses trunc(x·2^62) of float64 values in (0, 2); 0 for everything else, NaN too."""
    return (np.where((x > 0) & (x < 2), x, 0.0) * 2.0**62).astype(np.int64).view(np.uint64)


def pick(w, word):
    """Return the smallest v with w_0 + … + w_v > mulhi64(word, Σw) in each row [B, V], and its status bits.

    The token is −1 where the weights sum to 0 (NO_MASS) or to about 2 or more (EXCESS_MASS).
    """
    excess = (w >> _SHIFT32).sum(axis=1) >= _EXCESS
    cumulative = w.cumsum(axis=1)
    total = cumulative[:, -1]
    threshold = multiply_high(word, total)
    token = (cumulative <= threshold[:, None]).sum(axis=1)
    status = np.where(excess, Status.EXCESS_MASS, np.where(total == 0, Status.NO_MASS, 0))
    return np.where(status == 0, token, -1), status


def verify(draft, q, p, lengths, onehot, seed, position, uniforms):
    """Accept a prefix of each draft by u·q(x) < p(x), then pick the final token from (p − q)+ or from p.

    Shapes and meanings: `specnb.verify`; q = None makes every draft one-hot, which is the rule `match`.
    Returns tokens [B, G+1], num_accepted [B] and status [B].
    """
    B, G = draft.shape
    rows, columns = np.arange(B), np.arange(G)
    V = max(p.shape[2], 0 if q is None else q.shape[2])
    onehot = np.full(B, q is None) if onehot is None or q is None else onehot
    length = _effective_lengths(draft, lengths)
    accept_u, final_word, bad_u = _randomness(seed, position, uniforms, B, G)

    inside = (draft >= 0) & (draft < V)
    p_x = _gather(p, draft)
    q_x = np.ones((B, G)) if q is None else np.where(onehot[:, None], 1.0, _gather(q, draft))
    with np.errstate(invalid="ignore"):
        passes = inside & (q_x > 0) & (accept_u * q_x < p_x) & (columns < length[:, None])
    n = np.cumprod(passes, axis=1).sum(axis=1)
    rejected = n < length
    residual = rejected & ~onehot

    p_n = _widen(p[rows, n], V)
    q_n = np.zeros((B, V)) if q is None or G == 0 else _widen(q[rows, np.minimum(n, G - 1)], V)
    q_n[~residual] = 0.0
    x_n = draft[rows, np.minimum(n, G - 1)] if G else np.full(B, -1)
    point = rejected & onehot & (x_n >= 0) & (x_n < V)
    q_n[rows[point], x_n[point]] = 1.0
    with np.errstate(invalid="ignore"):
        w = weights(p_n - np.where(q_n > 0, q_n, 0.0))
    fallback = ~w.any(axis=1)
    w[fallback] = weights(p_n[fallback])
    token, status = pick(w, final_word)

    # What the verdict read: the gathered pairs up to n, the row p_n, and q_n where a soft draft was rejected.
    seen = (columns <= n[:, None]) & (columns < length[:, None])
    strange = (~np.isfinite(p_x) | ~np.isfinite(q_x)) & inside & seen
    nonfinite = strange.any(axis=1) | ~np.isfinite(p_n).all(axis=1) | ~np.isfinite(q_n).all(axis=1)
    at_n = seen & (columns == n[:, None])
    outside = (at_n & ~inside).any(axis=1)
    impossible = (at_n & inside & ~onehot[:, None] & ~(q_x > 0)).any(axis=1)
    unusable = (bad_u[:, :G] & seen).any(axis=1) | bad_u[:, G]
    status = status | nonfinite * Status.NONFINITE | impossible * Status.IMPOSSIBLE
    status = status | outside * Status.OUT_OF_RANGE | unusable * Status.BAD_UNIFORM

    tokens = np.full((B, G + 1), -1)
    tokens[:, :G] = np.where(columns < n[:, None], draft, -1)
    tokens[rows, n] = token
    return tokens, n, status.astype(np.int32)


def draw(probs, seed, position, index, purpose=DRAFTING):
    """Draw one token per row of probs [B, V] from the integer masses of its own word; −1 if there is no mass."""
    word = words(seed, position, [(index, purpose)], len(probs))[:, 0]
    token, _ = pick(weights(probs.astype(np.float64)), word)
    return token


def probabilities(logits, temperature, top_k, top_p, min_p):
    """Return the processed distributions, float32 [B, V], of logits [B, V]; each parameter has shape [B].

    temperature 0 is one-hot at the arg-max, lowest id first. top_k 0, top_p 1 and min_p 0 are off. A row
    whose maximum isn't finite (a NaN, +inf, or nothing but −inf) becomes NaN, which a verdict then reports.
    """
    B, V = logits.shape
    step = max(1, CHUNK // V)
    if step < B:
        arguments = (logits, temperature, top_k, top_p, min_p)
        return np.concatenate(
            [probabilities(*(a[start : start + step] for a in arguments)) for start in range(0, B, step)]
        )
    with np.errstate(over="ignore"):  # float64 beyond float32 becomes ±inf, and −inf weighs nothing
        z = logits.astype(np.float32)
        top = z.max(axis=1)
        unusable, greedy = ~np.isfinite(top), temperature == 0
        if unusable.any():
            z[unusable] = 0
        scale = (LOG2_E / np.where(greedy, 1.0, temperature)).astype(np.float32)
        p = _softmax(_filter(z, scale, top_k, top_p, min_p), scale)
    if greedy.any():
        p[greedy] = np.arange(V) == z[greedy].argmax(axis=1)[:, None]
    if unusable.any():
        p[unusable] = np.nan
    return p


def exp2(t):
    """Return 2^t in float32 for t <= 0: a degree-6 polynomial on [−1/2, 1/2] times exponent bits; 0 below −100."""
    magic = np.float32(1.5 * 2**23)
    f = np.maximum(t, np.float32(-127))
    k = f + magic
    k -= magic
    f -= k
    value = f * _EXP2[6]
    for coefficient in _EXP2[5:0:-1]:  # Horner in place: temporaries would take most of the time
        value += coefficient
        value *= f
    value += _EXP2[0]
    value *= ((k.astype(np.int32) + np.int32(127)) << np.int32(23)).view(np.float32)
    value[t < -100] = 0
    return value


def _filter(z, scale, top_k, top_p, min_p):
    """Set the logits that top-k, then top-p, then min-p drop to −inf; equal logits stay together."""
    if (top_k == 0).all() and (top_p == 1).all() and (min_p == 0).all():
        return z
    V = z.shape[1]
    descending = -np.sort(-z, axis=1)
    share = exp2((descending - descending[:, :1]) * scale[:, None])
    E = (share * _FIXED).astype(np.uint64)

    k = np.where(top_k == 0, V, np.minimum(top_k, V))
    threshold = descending[np.arange(len(z)), k - 1]
    E[descending < threshold[:, None]] = 0

    before = np.pad(E.cumsum(axis=1), ((0, 0), (1, 0)))
    repeats = np.pad(descending[:, 1:] == descending[:, :-1], ((0, 0), (1, 0)))
    first_equal = np.maximum.accumulate(np.where(repeats, 0, np.arange(V)), axis=1)
    larger = np.take_along_axis(before[:, :-1], first_equal, axis=1)
    fraction = (np.where(top_p < 1, top_p, 0.5) * 2.0**63).astype(np.uint64) << np.uint64(1)
    nucleus = (larger < multiply_high(fraction, before[:, -1])[:, None]) | (top_p == 1)[:, None]
    nucleus[:, 0] = True
    in_nucleus = np.where(nucleus, descending, np.inf).min(axis=1)
    threshold = np.maximum(threshold, in_nucleus)

    frequent = exp2((z - descending[:, :1]) * scale[:, None]) >= min_p.astype(np.float32)[:, None]
    return np.where((z >= threshold[:, None]) & frequent, z, np.float32(-np.inf))


def _softmax(z, scale):
    """Return the masses of logits [B, V], their sum taken as integers in tiles of 1,024 ids."""
    B, V = z.shape
    width = min(V, TILE)  # a single tile needs no padding: what that adds weighs 0
    tiles = _pad(z, -V % width, -np.inf).reshape(B, -(-V // width), width)
    tile_top = tiles.max(axis=2)
    top = tile_top.max(axis=1, keepdims=True)
    scale = scale[:, None]
    # A tile of nothing but −inf has no maximum to subtract: any finite one gives it the sum 0.
    reference = np.where(np.isfinite(tile_top), tile_top, np.float32(0))
    S = (exp2((tiles - reference[:, :, None]) * scale[:, :, None]) * _FIXED).astype(np.int64).sum(axis=2)
    Z = (S.astype(np.float64) * exp2((tile_top - top) * scale)).astype(np.int64).sum(axis=1)
    return exp2((z - top) * scale) * (1.0 / (Z * 2.0**-44)).astype(np.float32)[:, None]


def _randomness(seed, position, uniforms, B, G):
    """Return the accept uniforms float64 [B, G], the word of the final token [B] and which inputs are bad."""
    if uniforms is None:
        word = words(seed, position, [(i, ACCEPTING) for i in range(G)] + [(0, FINAL)], B)
        return (word[:, :G] >> np.uint64(11)) * 2.0**-53, word[:, G], np.zeros((B, G + 1), bool)
    bad = ~((uniforms >= 0) & (uniforms < 1))
    largest = (2**53 - 1) * 2.0**-53
    grid = (np.where(bad, np.where(uniforms >= 1, largest, 0.0), uniforms) * 2.0**53).astype(np.uint64)
    return grid[:, :G] * 2.0**-53, grid[:, G] << np.uint64(11), bad


def _effective_lengths(draft, lengths):
    """Return how many drafts of each row count: up to its length and its first id −1."""
    ended = np.cumsum(draft == -1, axis=1) > 0
    length = (~ended).sum(axis=1)
    return length if lengths is None else np.minimum(length, np.clip(lengths, 0, draft.shape[1]))


def _gather(rows, draft):
    """Return float64 [B, G]: each drafted token's probability, 0 where the row doesn't have that id."""
    V = rows.shape[2]
    known = (draft >= 0) & (draft < V)
    B, G = draft.shape
    values = rows[np.arange(B)[:, None], np.arange(G), np.where(known, draft, 0)]
    return np.where(known, values.astype(np.float64), 0.0)


def _widen(row, V):
    """Return rows [B, V'] as float64 [B, V], zero-extended."""
    return _pad(row.astype(np.float64), V - row.shape[1], 0.0)


def _pad(rows, columns, fill):
    """Return rows [B, V] with that many columns more; NumPy's own `pad` takes 17 µs even for none."""
    return np.pad(rows, ((0, 0), (0, columns)), constant_values=fill) if columns else rows
