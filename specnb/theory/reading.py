"""One formula, read with whatever its symbols are: NumPy's numbers and arrays, or SymPy's expressions."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import sympy

from specnb.errors import SpecnbError
from specnb.theory.inputs import common_shape, is_exact


def value_of(formula: Any, values: dict[Any, Any], in_floats: Any = None) -> Any:
    """Return what a formula is for these values of its symbols: a float, an array, or an expression.

    in_floats: the formula as it is computed with numbers, if not as it is written.
    """
    if any(is_exact(value) for value in values.values()):
        return formula.subs(_expressions(values), simultaneous=True)
    common_shape(values)
    with np.errstate(all="ignore"):  # a Piecewise computes all of its pieces, also those that it then drops
        computed = _in_numpy(in_floats or formula, tuple(values))(*values.values())
    return plain(computed)


def plain(array: Any) -> Any:
    """Return an array, or the number that an array without axes is."""
    return array if isinstance(array, sympy.Basic) or np.ndim(array) else np.asarray(array).item()


@cache
def _in_numpy(formula: Any, symbols: tuple[Any, ...]) -> Callable[..., Any]:
    return sympy.lambdify(symbols, formula, "numpy")


def _expressions(values: dict[Any, Any]) -> dict[Any, Any]:
    for symbol, value in values.items():
        if np.ndim(value):
            raise SpecnbError(f"{symbol} is an array beside SymPy expressions; expected one value of each")
    return {symbol: _expression(value) for symbol, value in values.items()}


def _expression(value: Any) -> Any:
    """Return a number as SymPy's: an integer as one, so that powers stay exact."""
    if isinstance(value, sympy.Basic):
        return value
    number = float(value)
    return sympy.Integer(int(number)) if number.is_integer() else sympy.Float(number)
