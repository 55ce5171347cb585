"""Integer masses of probabilities, and the token that a word picks from them."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from specnb.backends.numpy_words import multiply_high
from specnb.verdict import Status

Flag = SimpleNamespace(**{str(flag.name): int(flag) for flag in Status})
"""The bits of a status as plain integers: NumPy takes 4 µs for each operation with an enum."""

SHIFT32 = np.uint64(32)
EXCESS = 2**31 - 2**20
"""Sum of the high words of a row's weights from which on it is too heavy, for the weights' own sum may wrap."""


def weights(x):
    """Return the integer masses trunc(x·2^62) of float64 values in (0, 2); 0 for everything else, NaN too."""
    if not (x.min(initial=0.0) >= 0 and x.max(initial=0.0) < 2):  # neither holds for a NaN
        x = np.where((x > 0) & (x < 2), x, 0.0)
    return (x * 2.0**62).astype(np.int64).view(np.uint64)


def pick(w, word):
    """Return the smallest v with w_0 + … + w_v > mulhi64(word, Σw) in each row [B, V], and its status bits.

    The token is −1 where the weights sum to 0 (NO_MASS) or to about 2 or more (EXCESS_MASS).
    """
    excess = (w >> SHIFT32).sum(axis=1) >= EXCESS
    cumulative = w.cumsum(axis=1)
    total = cumulative[:, -1]
    threshold = multiply_high(word, total)
    token = (cumulative <= threshold[:, None]).sum(axis=1)
    status = excess * Flag.EXCESS_MASS | (~excess & (total == 0)) * Flag.NO_MASS
    return (np.where(status == 0, token, -1) if status.any() else token), status


def residual(p_n, q_n, scale):
    """Return the integer masses [B, V] of (scale·p − q⁺)+."""
    if not q_n.min(initial=0.0) >= 0:
        q_n = np.fmax(q_n, 0.0)  # 0 for a NaN
    with np.errstate(invalid="ignore"):
        return weights(np.maximum(scale[:, None] * p_n - q_n, 0.0))
