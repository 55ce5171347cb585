"""The few operations that a rule's law is written in, over float64, fractions, symbols or tensors.

A law uses + − ×, indexing of axes, and what `Arithmetic` names. `FLOAT64` and `EXACT` are NumPy's;
`specnb.symbols` has one that decides signs of SymPy expressions, and each backend one whose sums have no order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from specnb.errors import SpecnbError


def _no_transcendentals(_: Any) -> Any:
    raise SpecnbError("this law takes logarithms, which fractions and symbols don't have; expected rows of floats")


@dataclass(frozen=True)
class Arithmetic:
    """The operations that a law may use beyond + − ×, on arrays of one kind of number.

    min, max: elementwise, of arrays or numbers. where(x, a, b) is a where x > 0, else b. divide(a, b) is a/b, and
    0 where b is 0: an impossible draft is never accepted, and an empty residual has no mass. number: a parameter (int,
    float or Fraction) as these arrays take it. log, exp: floats only.
    """

    min: Callable[[Any, Any], Any]
    max: Callable[[Any, Any], Any]
    where: Callable[[Any, Any, Any], Any]
    divide: Callable[[Any, Any], Any]
    number: Callable[[Any], Any]
    log: Callable[[Any], Any] = _no_transcendentals
    exp: Callable[[Any], Any] = _no_transcendentals

    def sum(self, x: Any) -> Any:
        """Return the sums over the last axis, which is kept with length 1."""
        return x.sum(axis=-1, keepdims=True)

    def at(self, rows: Any, draft: Any) -> Any:
        """Return each drafted token's own entry of its row [..., G, V], as [..., G]; 0 for an id outside."""
        inside = (draft >= 0) & (draft < rows.shape[-1])
        entries = np.take_along_axis(rows, np.where(inside, draft, 0)[..., None], axis=-1)[..., 0]
        return np.where(inside, entries, 0)

    def point(self, draft: Any, rows: Any) -> Any:
        """Return one-hot rows [..., G, V] at the drafted tokens, of the kind of `rows`; zeros for an id outside."""
        return np.where(draft[..., None] == np.arange(rows.shape[-1]), 1, np.zeros_like(rows))

    def ones(self, rows: Any) -> Any:
        """Return ones [..., 1] for rows [..., G, V], of their kind."""
        return np.ones((*rows.shape[:-2], 1), rows.dtype)

    def join(self, parts: list[Any], axis: int) -> Any:
        """Return arrays joined along an axis that they have."""
        return np.concatenate(parts, axis)


def elementwise(
    minimum: Callable, maximum: Callable, where: Callable, divide: Callable, number: Callable
) -> Arithmetic:
    """Return the arithmetic of object arrays whose elements these functions combine."""
    return Arithmetic(
        np.frompyfunc(minimum, 2, 1), np.frompyfunc(maximum, 2, 1),
        np.frompyfunc(where, 3, 1), np.frompyfunc(divide, 2, 1), number,
    )  # fmt: skip


def _divide_float64(a, b):
    a, b = np.broadcast_arrays(a, b)
    return np.divide(a, b, out=np.zeros(a.shape), where=b != 0)


def _divide_exactly(a, b):
    return Fraction(a) / b if b else Fraction(0)


FLOAT64 = Arithmetic(
    np.minimum, np.maximum, lambda x, a, b: np.where(x > 0, a, b), _divide_float64, float, np.log, np.exp
)  # fmt: skip
EXACT = elementwise(min, max, lambda x, a, b: a if x > 0 else b, _divide_exactly, Fraction)


class _Ordered(Arithmetic):
    """Float64 whose sums are added up as integers of 2^-62, so that no order of addition shows in a token."""

    def sum(self, x):
        x = np.where(abs(x) < 2.0**10, x, 0.0) * 2.0**30
        high = np.trunc(x)
        low = ((x - high) * 2.0**32).astype(np.int64).sum(-1)
        return (high.astype(np.int64).sum(-1) * 2.0**-30 + low * 2.0**-62)[..., None]


ORDERED = _Ordered(**vars(FLOAT64))
