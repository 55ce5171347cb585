"""The contract's softmax on a CPU, through NumPy's views of tensors, whose operators cost half as much there.

A translation of its own beside `specnb.backends.numpy_logits`: another way to the exponent's bits, to the tiles and
to the sums. All logits are float32 [B, V] with a finite maximum in each row; scale, float32 [B], is log2(e)/T.
"""

from __future__ import annotations

import numpy as np

TILE = 1024  # ids per tile of the softmax mass; part of the contract
SEGMENT = 64 * TILE  # ids per pass, so that a core's cache holds the temporaries
_UNIT = 2.0**44  # of the integer masses
_COEFFICIENTS = (1.0, 0.6931471824645996, 0.24022650718688965, 0.05550327152013779, 0.009618056938052177,
                 0.0013400427997112274, 0.00015461444854736328)  # fmt: skip
_ONE = [np.array(c, np.float32) for c in _COEFFICIENTS]
_MASS = [c * np.float32(_UNIT) for c in _ONE]  # exact: a power of two commutes with every rounding of Horner's scheme
_MAGIC = np.array(1.5 * 2**23, np.float32)
_MANTISSA = np.array(23, np.uint32)


def softmax(z, scale):
    """Return the masses of logits, float32 [B, V]."""
    B, V = z.shape
    scale = scale[:, None]
    work = np.empty((3, B, min(V, SEGMENT)), np.float32)
    tile_top = np.maximum.reduceat(z, np.arange(0, V, TILE), axis=1)
    top = tile_top.max(1, keepdims=True)
    p = np.empty((B, V), np.float32)
    with np.errstate(over="ignore"):  # beyond float32 lies −inf, which weighs nothing
        low = bool(((z.min(1, keepdims=True) - top) * scale < -100).any())
        inverse = _inverse_mass(z, scale, tile_top, top, low, work)
        for columns in _segments(V):
            part = work[:, :, : columns.stop - columns.start]
            np.multiply(np.subtract(z[:, columns], top, out=part[0]), scale, out=part[0])
            np.multiply(_exp2(part, _ONE, low), inverse, out=p[:, columns])
    return p


def _inverse_mass(z, scale, tile_top, top, low, work):
    """Return one over the sum of each row's masses, float32 [B, 1]."""
    # A tile of nothing but −inf has no maximum to subtract: any finite one gives it the sum 0.
    finite = np.where(tile_top > -np.inf, tile_top, np.float32(0))
    parts = []
    for columns in _segments(z.shape[1]):
        part = work[:, :, : columns.stop - columns.start]
        _subtract_by_tile(z[:, columns], finite[:, columns.start // TILE :], part[0])
        part[0] *= scale
        E = _exp2(part, _MASS, low)
        parts.append(_tile_sums(np.trunc(E, out=E)))
    S = np.concatenate(parts, axis=1) if len(parts) > 1 else parts[0]
    share = _exp2(np.stack([(tile_top - top) * scale] * 3), _ONE, low)
    Z = (S * share.astype(np.float64)).astype(np.int64).sum(1, keepdims=True)
    return (1.0 / (Z * (1 / _UNIT))).astype(np.float32)


def _segments(V):
    return [slice(start, min(start + SEGMENT, V)) for start in range(0, V, SEGMENT)]


def _subtract_by_tile(z, tile_top, out):
    """Write logits [B, N] minus the maximum of their tile; of the last tile there may be less than the whole."""
    B, N = z.shape
    T, full = N // TILE, N // TILE * TILE
    whole = out[:, :full].reshape(B, T, TILE)  # splitting an axis makes a view
    np.subtract(z[:, :full].reshape(B, T, TILE), tile_top[:, :T, None], out=whole)
    np.subtract(z[:, full:], tile_top[:, T : T + 1], out=out[:, full:])


def _tile_sums(E):
    """Return the sums of tiles, int64 [B, tiles], of integers in float32.

    They are at most 2^44: half a tile of them, at most 2^53, has an exact sum in float64, in any order.
    """
    halves = np.add.reduceat(E, np.arange(0, E.shape[1], TILE // 2), axis=1, dtype=np.float64).astype(np.int64)
    return np.add.reduceat(halves, np.arange(0, halves.shape[1], 2), axis=1)


def _exp2(work, coefficients, low):
    """Return 2^t in float32 for t <= 0, times the unit of the coefficients.

    work: t and room for two arrays more, of which one is returned; all three are used up. low: whether any t may be
    below −100, where the result is 0.
    """
    t, shifted, value = work
    if low:
        vanishing = t < -100
        np.maximum(t, np.float32(-127), out=t)
    np.add(t, _MAGIC, out=shifted)
    np.subtract(shifted, _MAGIC, out=value)
    t -= value
    np.multiply(t, coefficients[6], out=value)
    for coefficient in coefficients[5:0:-1]:
        value += coefficient
        value *= t
    value += coefficients[0]
    exponent, bits = shifted.view(np.uint32), value.view(np.uint32)
    exponent <<= _MANTISSA  # its low bits are t, rounded; the shift leaves nothing else
    bits += exponent
    if low:
        value[vanishing] = 0
    return value
