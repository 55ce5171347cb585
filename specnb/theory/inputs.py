"""What comes in: probabilities, costs and counts, as float64 arrays or SymPy expressions; all else is refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

import numpy as np
import sympy

from specnb.errors import SpecnbError


def is_exact(value: Any) -> bool:
    """Say whether a value is for SymPy: an expression or a `Fraction`, or an array or sequence that holds one."""
    if isinstance(value, sympy.Basic | Fraction):
        return True
    if isinstance(value, list | tuple) or (isinstance(value, np.ndarray) and value.dtype == object):
        return any(is_exact(entry) for entry in value)
    return False


def probability(name: str, value: Any) -> Any:
    """Return a probability or an array of them, or raise."""
    return _checked(name, value, lambda x: (x >= 0) & (x <= 1), "a probability in [0, 1]")


def cost(name: str, value: Any) -> Any:
    """Return a finite cost >= 0, or raise."""
    return _checked(name, value, lambda x: (x >= 0) & (x < np.inf), "a finite cost >= 0, in target steps")


def positive_cost(name: str, value: Any) -> Any:
    """Return a finite cost > 0, or raise."""
    return _checked(name, value, lambda x: (x > 0) & (x < np.inf), "a finite cost > 0, in target steps")


def count(name: str, value: Any) -> Any:
    """Return a count >= 0, or raise."""
    return _checked(name, value, lambda x: (x >= 0) & (x < np.inf) & (x % 1 == 0), "an integer >= 0")


def one_count(name: str, value: Any) -> int:
    """Return one integer >= 0, or raise."""
    number = count(name, value)
    if getattr(number, "free_symbols", None) or np.ndim(number):
        raise SpecnbError(f"{name} is {value!r}; expected one integer >= 0")
    return int(number)


def common_shape(values: Mapping[Any, Any]) -> tuple[int, ...]:
    """Return the shape that values broadcast to, or raise; values: by name or symbol."""
    try:
        return np.broadcast_shapes(*(np.shape(value) for value in values.values()))
    except ValueError:
        shapes = ", ".join(f"{name} {np.shape(value)}" for name, value in values.items())
        raise SpecnbError(f"the shapes are {shapes}; expected shapes that broadcast") from None


def is_profile(alpha: Any) -> bool:
    """Say whether alpha is a sequence or an array, of one acceptance per position."""
    return np.array(alpha, dtype=object).ndim > 0


def profile(alpha: Any, gamma: Any = None) -> np.ndarray:
    """Return acceptances [..., γ] by position: those given, or one α repeated γ times, then zeros, for each γ.

    Of dtype object if they are SymPy's. Raises if gamma is missing for one α.
    """
    if gamma is None:
        if not is_profile(alpha):
            raise SpecnbError("gamma is None; expected an integer >= 0, or alpha as the acceptances by position")
        return np.asarray(probability("alpha", alpha))
    if is_exact(alpha) and not is_profile(alpha):
        return np.array([probability("alpha", alpha)] * one_count("gamma", gamma), dtype=object)
    values = {"alpha": probability("alpha", alpha), "gamma": count("gamma", gamma)}
    common_shape(values)
    each, drafts = (np.asarray(value)[..., None] for value in values.values())
    return np.where(np.arange(1, drafts.max(initial=0) + 1) <= drafts, each, 0)


def _checked(name: str, value: Any, holds: Callable[[Any], Any], expected: str) -> Any:
    if is_exact(value):
        return _exactly(name, value, holds, expected)
    try:
        array = np.asarray(value, float)
    except (TypeError, ValueError):
        raise SpecnbError(f"{name} is {value!r}; expected {expected}") from None
    with np.errstate(invalid="ignore"):  # of what isn't finite there is no remainder
        wrong = np.argwhere(~holds(array))
    if len(wrong):
        index = tuple(wrong[0].tolist())
        where = f"{name}[{', '.join(map(str, index))}]" if index else name
        raise SpecnbError(f"{where} is {array[index]:g}; expected {expected}")
    return array


def _exactly(name: str, value: Any, holds: Callable[[Any], Any], expected: str) -> Any:
    """Return a SymPy expression, or an array of them; what it can be is checked where it is a number."""
    if not isinstance(value, sympy.Basic | Fraction):
        entries = np.array(value, dtype=object)
        checked = [_exactly(name, sympy.sympify(entry), holds, expected) for entry in entries.flat]
        return np.array(checked, dtype=object).reshape(entries.shape)
    number: Any = sympy.sympify(value)
    if number.is_extended_real is False or (number.is_number and not holds(number)):
        raise SpecnbError(f"{name} is {number}; expected {expected}")
    return number
