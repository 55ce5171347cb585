"""`specnb.laws.implemented_law`: the exact law of what the backends compute, over all their random words."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from specnb.arithmetic import FLOAT64
from specnb.arrays import describe, integers
from specnb.backends.numpy import weights
from specnb.errors import SpecnbError
from specnb.laws.rows import alike, as_array, as_rows

UNIFORMS, WORDS = 2**53, 2**64
"""How many uniforms there are to accept by, r·2^-53, and how many words to pick by."""

LEAST_MASS, MOST_MASS = 0.01, 1.99
"""Rows that sum to about 2 have masses beyond 64 bits, and the backends pick nothing from them."""


@dataclass(frozen=True)
class ImplementedLaw:
    """The law of a verdict of the rule `token` in the arithmetic contract, in Fractions; a batch adds a dimension B.

    lengths [G+1]: P(exactly n drafts of the given path are accepted). correction [G+1, V]: the law of the token
    behind n. rounding [G], from_target [G]: how far the emitted token's law is, in total variation, at a position
    whose draft is drawn from q by the contract too: from the same formulas in exact arithmetic on the rows as they
    are, and from p over its sum. The second has the error of the rows' own sums.
    """

    lengths: np.ndarray
    correction: np.ndarray
    rounding: np.ndarray
    from_target: np.ndarray

    def __repr__(self) -> str:
        """Show both distances as floats, largest position first."""
        rounding, from_target = (float(max(values.flat, default=0)) for values in (self.rounding, self.from_target))
        return f"ImplementedLaw({describe(self.lengths)}, rounding <= {rounding:.2g}, from_target <= {from_target:.2g})"


def implemented_law(draft: Any, q: Any, p: Any) -> ImplementedLaw:
    """Return the exact law of what `specnb.verify` computes for a path, over all uniforms and words.

    draft: ids [G], all in the vocabulary; q: float rows [G, V], or None if every draft is one-hot; p: float rows
    [G+1, V]; or all with a batch dimension. A draft is accepted by some of the 2^53 uniforms and a token picked by
    some of the 2^64 words, so every probability is a count over a power of two. Raises `SpecnbError` for rows that
    are no laws.

    >>> law = implemented_law([0], [[0.75, 0.25]], [[0.25, 0.75], [0.5, 0.5]])
    >>> law.lengths.tolist()[1] - Fraction(1, 3)  # the uniforms below 1/3 are a third of 2^53, rounded up
    Fraction(1, 27021597764222976)
    """
    draft, p = integers("draft", as_array("draft", draft), None), _floats("p", p)
    V = p.shape[-1] if p.ndim else 0
    if not ((draft >= 0) & (draft < V)).all():
        raise SpecnbError(f"draft is {draft.tolist()}; expected ids in 0 … {V - 1}")
    q = FLOAT64.point(draft, np.zeros((*draft.shape, V))) if q is None else _floats("q", q)
    expected = "draft [G], q [G, V] or None, p [G+1, V], or all with a batch dimension"
    shapes = (*draft.shape, V), (*draft.shape[:-1], draft.shape[-1] + 1, V) if draft.ndim else ()
    if draft.ndim not in (1, 2) or 0 in draft.shape[:-1] or (q.shape, p.shape) != shapes:
        raise SpecnbError(f"draft is {describe(draft)}, q {describe(q)} and p {describe(p)}; expected {expected}")
    if draft.ndim == 1:
        return ImplementedLaw(*_law(draft, q, p))
    laws = [_law(*path) for path in zip(draft, q, p, strict=True)]
    return ImplementedLaw(*(np.stack(parts) for parts in zip(*laws, strict=True)))


def _floats(name: str, values: Any) -> np.ndarray:
    """Return float64 rows from which something is picked."""
    (rows,) = alike(as_rows(name, values))
    if rows.dtype != np.float64:
        raise SpecnbError(f"{name} holds Fractions; expected floats, as the backends compute in")
    mass = rows.sum(-1)
    if not ((mass > LEAST_MASS) & (mass < MOST_MASS)).all():
        raise SpecnbError(f"{name} has rows of sum {mass.min():g} to {mass.max():g}; expected about 1")
    return rows


def _law(draft: np.ndarray, q: np.ndarray, p: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return the fields of `ImplementedLaw` for one path."""
    G = len(draft)
    accepting = _accepting(q, p[:G])
    picked = [_picking(_masses(row, p_row)) for row, p_row in zip(q, p[:G], strict=True)] + [_picking(weights(p[G]))]
    kept = [Fraction(int(count), UNIFORMS) for count in accepting[np.arange(G), draft]]
    lengths = [math.prod(kept[:n], start=1 - a) for n, a in enumerate([*kept, Fraction(0)])]
    distances = [_distances(_emitted(q[i], accepting[i], picked[i]), q[i], p[i]) for i in range(G)]
    rounding, from_target = np.array(distances, object).reshape(G, 2).T
    return np.array(lengths), np.stack([_over(counts, WORDS) for counts in picked]), rounding, from_target


def _masses(q: np.ndarray, p: np.ndarray) -> np.ndarray:
    """Return the integer masses [V] of (p − q)+, or those of p where there is none."""
    rest = weights(p - q)
    return rest if rest.any() else weights(p)


def _accepting(q: np.ndarray, p: np.ndarray) -> np.ndarray:
    """Return how many r in 0 … 2^53 − 1 have r·2^-53·q < p in float64, elementwise; none where q is 0.

    Rounding a product keeps order, so these are the r below a first one that fails, which bisection finds.
    """
    passing, failing = np.zeros(q.shape, np.int64), np.where(q > 0, UNIFORMS, 0)
    while (passing < failing).any():
        middle = (passing + failing) // 2
        passes = (passing < failing) & (middle * 2.0**-53 * q < p)
        passing, failing = np.where(passes, middle + 1, passing), np.where(passes, failing, middle)
    return passing


def _picking(w: np.ndarray) -> np.ndarray:
    """Return how many words X in 0 … 2^64 − 1 pick each token from masses w: those with w_0 + … + w_v > (X·W) >> 64.

    The first word that reaches a cumulative mass c is the least X with X·W >= c·2^64.
    """
    ends = w.astype(object).cumsum()
    return np.diff(-(-ends * WORDS // ends[-1]), prepend=0)


def _emitted(q: np.ndarray, accepting: np.ndarray, corrected: np.ndarray) -> np.ndarray:
    """Return the law of what a position emits, as integers over 2^181: drafts that are kept, and corrections."""
    drafted, accepting = _picking(weights(q)), accepting.astype(object)
    rejected = (drafted * (UNIFORMS - accepting)).sum()
    return drafted * accepting * WORDS + rejected * corrected


def _distances(emitted: np.ndarray, q: np.ndarray, p: np.ndarray) -> tuple[Fraction, Fraction]:
    """Return the total variation of an emitted law from exact arithmetic on its rows, and from p over its sum."""
    q, p = _integers(np.stack([q, p]))
    kept = np.minimum(p, q)
    rest = p - kept if (p > kept).any() else p
    exact = kept * rest.sum() + (q - kept).sum() * rest
    return _total_variation(emitted, exact), _total_variation(emitted, p)


def _integers(rows: np.ndarray) -> np.ndarray:
    """Return floats times the power of two that makes all of them integers."""
    mantissa, exponent = np.frexp(rows)
    mantissa = (mantissa * 2.0**53).astype(np.int64)
    least = exponent[mantissa != 0].min()
    return mantissa.astype(object) << np.where(mantissa != 0, exponent - least, 0).astype(object)


def _total_variation(a: np.ndarray, b: np.ndarray) -> Fraction:
    """Return the total variation of two laws given as integers over their sums."""
    A, B = a.sum(), b.sum()
    return Fraction(int(abs(a * B - b * A).sum()), int(2 * A * B))


def _over(counts: np.ndarray, whole: int) -> np.ndarray:
    return np.array([Fraction(count, whole) for count in counts], object)
