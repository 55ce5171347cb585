"""Filters on estimated masses: what top-k, top-p and min-p drop, wherever no error of the estimate could change it."""

from __future__ import annotations

import numpy as np

from specnb.backends.bounds import MASS_ERROR, NEGLIGIBLE

TRUNCATION = 2.0**-44
"""What the integer mass of an id may lie below the float32 value that it comes from; the row's largest is 1."""


def drop(logits, mass, how):
    """Set the masses [R, k, V] that the filters drop to 0, and all of a row to NaN where that is in doubt.

    logits: float32 [R, k, V]. how: scale, top_k, top_p and min_p, each [R, 1, 1]; None is off.
    """
    doubt = np.zeros((*mass.shape[:2], 1), bool)
    dropped = doubt
    if how.top_k is not None or how.top_p is not None:
        descending = np.sort(logits, axis=2)[:, :, ::-1]
        threshold = _kth(descending, how.top_k)
        if how.top_p is not None:
            nucleus, doubt = _nucleus(descending, threshold, how)
            threshold = np.maximum(threshold, nucleus)
        dropped = logits < threshold
    if how.min_p is not None:
        least = how.min_p.astype(np.float32).astype(np.float64)
        rare = mass < least * (1 - MASS_ERROR) - NEGLIGIBLE
        frequent = (mass >= least * (1 + MASS_ERROR) + NEGLIGIBLE) | (least == 0)
        doubt = doubt | ~(rare | frequent).all(axis=2, keepdims=True)
        dropped = dropped | rare
    mass[dropped] = 0
    mass[doubt[:, :, 0]] = np.nan


def _kth(descending, top_k):
    """Return the smallest logit [R, k, 1] that top-k keeps."""
    if top_k is None:
        return np.float32(-np.inf)
    V = descending.shape[2]
    last = np.where(top_k == 0, V, np.minimum(top_k, V)) - 1
    return np.take_along_axis(descending, np.broadcast_to(last, (*descending.shape[:2], 1)), 2)


def _nucleus(descending, threshold, how):
    """Return the smallest logit [R, k, 1] of those below whose larger ones lies less than top_p, and where in doubt."""
    V = descending.shape[2]
    mass = np.exp2((descending - descending[:, :, :1]) * how.scale)
    mass[descending < threshold] = 0
    cumulative = mass.cumsum(axis=2, dtype=np.float64)
    whole = cumulative[:, :, -1:]
    error = 2 * (MASS_ERROR * whole + V * (TRUNCATION + NEGLIGIBLE))
    ends = ((cumulative < how.top_p * whole + by).sum(axis=2, keepdims=True) for by in (-error, error))
    low, high = (np.take_along_axis(descending, np.minimum(end, V - 1), 2) for end in ends)
    off = how.top_p == 1
    return np.where(off, np.float32(-np.inf), low), ~off & (low != high)
