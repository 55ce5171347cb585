"""From logits to probabilities, by the contract: exp2 in float32 without fusion, and integer sums."""

from __future__ import annotations

import numpy as np

from specnb.backends.numpy_words import multiply_high

TILE = 1024
"""Ids per tile of the softmax mass; part of the contract, since float64 sums are taken per tile."""

CHUNK = 2**15
"""Logits per pass, so that a core's cache holds the temporaries."""

BLOCK = 2**16
"""Elements per pass of `exp2`, for the same reason."""

_FIXED = np.float32(2**44)
_MAGIC = np.float32(1.5 * 2**23)
LOG2_E = np.float64(1.4426950408889634)
_EXP2 = np.array(
    [1.0, 0.6931471824645996, 0.24022650718688965, 0.05550327152013779, 0.009618056938052177,
     0.0013400427997112274, 0.00015461444854736328], np.float32,
)  # fmt: skip


def probabilities(logits, temperature, top_k, top_p, min_p):
    """Return the processed distributions, float32 [B, V], of logits [B, V]; each parameter has shape [B].

    temperature 0 is one-hot at the arg-max, lowest id first. top_k 0, top_p 1 and min_p 0 are off, and so is None.
    A row whose maximum isn't finite (a NaN, +inf, or nothing but −inf) becomes NaN, which a verdict then reports.
    """
    B, V = logits.shape
    step = max(1, CHUNK // V)
    if step < B:
        arguments = (logits, temperature, top_k, top_p, min_p)
        chunks = ([a if a is None else a[start : start + step] for a in arguments] for start in range(0, B, step))
        return np.concatenate([probabilities(*chunk) for chunk in chunks])
    with np.errstate(over="ignore"):  # float64 beyond float32 becomes ±inf, and −inf weighs nothing
        z = logits.astype(np.float32, copy=False)
        usable, sampled = np.isfinite(z.max(axis=1)), temperature != 0
        whole, none_greedy = usable.all(), sampled.all()
        z = z if whole else np.where(usable[:, None], z, np.float32(0))
        scale = (LOG2_E / (temperature if none_greedy else np.where(sampled, temperature, 1.0))).astype(np.float32)
        p = _softmax(_filter(z, scale, top_k, top_p, min_p), scale) if sampled.any() else np.empty_like(z)
    if not none_greedy:
        greedy = np.flatnonzero(~sampled)
        p[greedy] = 0
        p[greedy, z[greedy].argmax(axis=1)] = 1
    if not whole:
        p[~usable] = np.nan
    return p


def processed(logits, parameters):
    """Return the processed distributions of logits [B, R, V], a request's R rows with its own parameters [B]."""
    B, R, V = logits.shape
    each = (values if values is None else np.repeat(values, R) for values in parameters)
    rows = probabilities(logits.reshape(B * R, V), *each)
    return rows.reshape(B, R, V)


def exp2(t):
    """Return 2^t in float32 for t <= 0: a degree-6 polynomial on [−1/2, 1/2] times exponent bits; 0 below −100."""
    return _exp2_of(np.array(t, order="C"))


def _exp2_of(t):
    """Turn t into 2^t where it stands: a second array of its size would take longer than the arithmetic."""
    flat = t.reshape(-1)
    for start in range(0, t.size, BLOCK):
        _exp2(flat[start : start + BLOCK])
    return t


def _exp2(t):
    vanishing = None if t.min() >= -100 else t < -100
    if vanishing is not None:
        np.maximum(t, np.float32(-127), out=t)
    shifted = t + _MAGIC  # rounds to an integer k, which its low bits then hold
    f = shifted - _MAGIC
    np.subtract(t, f, out=f)
    value = np.multiply(f, _EXP2[6], out=t)
    for coefficient in _EXP2[5:0:-1]:  # Horner in place
        value += coefficient
        value *= f
    value += _EXP2[0]
    exponent = value.view(np.int32)
    exponent += shifted.view(np.int32) << np.int32(23)  # times 2^k: all other bits of the sum are shifted out
    if vanishing is not None:
        value[vanishing] = 0


def _filter(z, scale, top_k, top_p, min_p):
    """Set the logits that top-k, then top-p, then min-p drop to −inf; equal logits stay together."""
    given = ((values, off) for values, off in ((top_k, 0), (top_p, 1.0), (min_p, 0.0)) if values is not None)
    if all((values == off).all() for values, off in given):
        return z
    off = np.zeros(len(z), np.int64)
    top_k, top_p, min_p = (off + default if v is None else v for v, default in ((top_k, 0), (top_p, 1.0), (min_p, 0.0)))
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
    tiles = pad(z, -V % width, -np.inf).reshape(B, -(-V // width), width)
    tile_top = tiles.max(axis=2)
    top = tile_top.max(axis=1, keepdims=True)
    finite = np.isfinite(tile_top)
    # A tile of nothing but −inf has no maximum to subtract: any finite one gives it the sum 0.
    reference = tile_top if finite.all() else np.where(finite, tile_top, np.float32(0))

    padded = tiles.shape[1] * width
    t = np.empty((B, padded + V + tiles.shape[1]), np.float32)  # in one piece: a call takes longer than a row
    in_tile, overall, between = t[:, :padded], t[:, padded : padded + V], t[:, padded + V :]
    np.subtract(tiles, reference[:, :, None], out=in_tile.reshape(tiles.shape))
    np.subtract(z, top, out=overall)
    np.subtract(tile_top, top, out=between)
    t *= scale[:, None]
    _exp2_of(t)

    S = (in_tile.reshape(tiles.shape) * _FIXED).astype(np.int64).sum(axis=2)
    Z = (S.astype(np.float64) * between).astype(np.int64).sum(axis=1)
    return overall * (1.0 / (Z * 2.0**-44)).astype(np.float32)[:, None]


def pad(rows, columns, fill):
    """Return rows [B, V] with that many columns more; NumPy's own `pad` takes 17 µs even for none."""
    return np.pad(rows, ((0, 0), (0, columns)), constant_values=fill) if columns else rows
