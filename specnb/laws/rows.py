"""Rows as laws take them: checked, float64 or Fractions, one for all prefixes or a function of the prefix."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from specnb.arithmetic import EXACT, FLOAT64, Arithmetic
from specnb.arrays import describe, to_numpy
from specnb.errors import SpecnbError

Rows = Sequence[Any] | np.ndarray | Callable[[tuple[int, ...]], Any]

MASS_TOLERANCE = 1e-4
"""How far from 1 a row of floats may sum. A float32 softmax over 262,144 ids was off by 2e-5; Fractions: by 0."""


def tree_of(name: str, rows: Rows, depth: int) -> list[np.ndarray]:
    """Return the rows after every prefix of 0 … depth−1 tokens, arrays [V^k, V] in the prefixes' order."""
    if not callable(rows):
        row = one_row(name, rows)
        return [np.broadcast_to(row, (len(row) ** k, len(row))) for k in range(depth)]
    V = len(one_row(name, rows(())))
    tree = []
    for k in range(depth):
        prefixes = list(np.ndindex(*(V,) * k))
        level = as_rows(name, [rows(prefix) for prefix in prefixes])
        if level.shape != (V**k, V):
            raise SpecnbError(f"{name} has rows {level.shape} after {k} tokens; expected {(V**k, V)}: one vocabulary")
        check_mass(level, lambda at, prefixes=prefixes: f"{name} after the prefix {prefixes[at]}")
        tree.append(level)
    return tree


def trees_of(p: Rows, q: Rows, depth: int) -> tuple[list[np.ndarray], list[np.ndarray], Arithmetic]:
    """Return the trees of p and of q in one kind of number, and what computes with them."""
    levels = alike(*tree_of("p", p, depth), *tree_of("q", q, depth))
    target, drafted = levels[:depth], levels[depth:]
    return target, drafted, arithmetic_of(target[0], drafted[0])


def as_count(name: str, value: Any, low: int) -> int:
    """Return a count as an int, or raise unless it is an integer of at least `low`."""
    try:
        count = operator.index(value)
    except TypeError:
        count = low - 1
    if isinstance(value, bool) or count < low:
        raise SpecnbError(f"{name} is {value!r}; expected an integer >= {low}")
    return count


def as_array(name: str, values: Any) -> np.ndarray:
    """Return an array of whatever came, or raise where its rows differ in length."""
    try:
        return to_numpy(values)
    except (TypeError, ValueError) as error:
        raise SpecnbError(f"{name} is no array ({error}); expected rows of one length") from None


def as_numbers(name: str, values: Any) -> np.ndarray:
    """Return float64, an object array of Fractions where exact numbers came in, or integers, for `alike`."""
    array = as_array(name, values)
    if array.dtype.kind in "iu":
        return array
    if array.dtype.kind in "bf":
        return array.astype(np.float64)
    try:
        return np.asarray(np.frompyfunc(_exact, 1, 1)(array))
    except (TypeError, ValueError, OverflowError) as error:
        raise SpecnbError(f"{name} is {describe(array)} ({error}); expected finite numbers") from None


def _exact(value: Any) -> Fraction:
    if isinstance(value, str | bytes):
        raise TypeError(f"{value!r} is a text")
    return Fraction(value)


def alike(*arrays: np.ndarray) -> list[np.ndarray]:
    """Return arrays with their integers as Fractions beside Fractions, and else as float64."""
    exact = any(array.dtype == object for array in arrays)
    convert = np.frompyfunc(Fraction, 1, 1) if exact else np.float64
    return [np.asarray(convert(array)) if array.dtype.kind in "iu" else array for array in arrays]


def as_rows(name: str, values: Any) -> np.ndarray:
    """Return rows as numbers, refusing what no law can be: a NaN, an infinity, a negative probability."""
    array = as_numbers(name, values)
    bad = np.argwhere(~((array >= 0) & (array < np.inf)).astype(bool))
    if len(bad):
        at = tuple(map(int, bad[0]))
        raise SpecnbError(f"entry {at} of {name} is {array[at]}; expected a probability, finite and >= 0")
    return array


def one_row(name: str, values: Any) -> np.ndarray:
    """Return a law [V]."""
    row = as_rows(name, values)
    if row.ndim != 1:
        raise SpecnbError(f"{name} has shape {row.shape}; expected one row [V]")
    check_mass(row[None], lambda _: name)
    return row


def check_mass(rows: np.ndarray, name: Callable[[int], str]) -> None:
    """Raise unless every one of the rows [N, V] sums to 1; `name` says which row it is."""
    mass = rows.sum(axis=1, dtype=object if rows.dtype == object else np.float64)
    off = mass != 1 if rows.dtype == object else abs(mass - 1) > MASS_TOLERANCE
    if off.any():
        at = int(off.argmax())
        expected = "exactly 1" if rows.dtype == object else f"1 within {MASS_TOLERANCE:g}"
        raise SpecnbError(f"{name(at)} sums to {mass[at]}; expected {expected}: divide the row by its sum")


def arithmetic_of(p: np.ndarray, q: np.ndarray, name: str = "p") -> Arithmetic:
    """Return what computes with both rows, after checking that they belong together; name: of the first, for errors."""
    if p.shape[-1] != q.shape[-1]:
        raise SpecnbError(f"{name} has rows of {p.shape[-1]} entries and q of {q.shape[-1]}; expected one vocabulary")
    if q.size and p.dtype != q.dtype:
        raise SpecnbError(f"{name} and q mix floats and Fractions; expected one kind of number")
    return EXACT if p.dtype == object else FLOAT64
