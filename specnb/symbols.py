"""SymPy's side of a proof: signs decided for all values of the symbols, sums over all tokens, the paper's notation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from functools import reduce
from math import prod
from typing import Any, TypeAlias

import sympy
from sympy import ZZ, Piecewise
from sympy.polys.fields import FracElement, FracField
from sympy.printing.latex import LatexPrinter

from specnb.arithmetic import elementwise
from specnb.errors import SpecnbError

Expr: TypeAlias = Any  # a SymPy expression; its own annotations promise less than what comes back

p, q = sympy.symbols("p_v q_v", nonnegative=True)
alpha, leniency = sympy.symbols("alpha l", positive=True)


class Undecided(SpecnbError):
    """The cases leave open what a rule asks for."""


class Over(sympy.Expr):
    """The sum of an expression over all tokens v, whatever the vocabulary."""

    is_commutative = True


class _Paper(LatexPrinter):
    """Prints as the paper does: (p − q)+ for a maximum with 0, positive terms first, sums over v."""

    def _print_Max(self, expr, exp=None):
        rest = [argument for argument in expr.args if argument != 0]
        return rf"\left({self._print(rest[0])}\right)_+" if len(rest) == 1 else super()._print_Max(expr, exp)

    def _print_Over(self, expr, exp=None):
        body = self._print(expr.args[0])
        sum_of = r"\sum_v " + (rf"\left({body}\right)" if expr.args[0].is_Add else body)
        return sum_of if exp is None else rf"\left({sum_of}\right)^{{{exp}}}"

    def _as_ordered_terms(self, expr, order=None):
        return sorted(super()._as_ordered_terms(expr, order), key=lambda term: term.could_extract_minus_sign())


def latex(expression: Expr) -> str:
    """Return an expression in the notation of the paper."""
    return _Paper().doprint(expression)


def factored(expression: Expr) -> Expr:
    """Return a product whose factors begin with a positive constant, as 1 − l, and whose minus a difference takes."""
    product: Expr = sympy.factor(expression)
    coefficient, factors = product.as_coeff_mul()
    turned = []
    for base, exponent in (factor.as_base_exp() for factor in factors):
        negative = base.as_coeff_Add()[0] < 0
        turned.append((-base if negative else base) ** exponent)
        coefficient *= (-1) ** exponent if negative else 1
    for i, factor in enumerate(turned):
        if coefficient < 0 and factor.is_Add and factor.as_coeff_Add()[0] == 0:
            turned[i], coefficient = -factor, -coefficient
    return sympy.Mul(coefficient, *turned)


def sign(x: Any) -> int:
    """Return 1, 0 or −1, the sign of a number, or of a rational function for all positive values of its symbols.

    A function's is known where its numerator's coefficients agree in sign, and its denominator's; `Undecided` is
    raised where they don't.
    """
    if not isinstance(x, FracElement):
        return (x > 0) - (x < 0)
    return _sign_of_polynomial(x, x.numer) * _sign_of_polynomial(x, x.denom)


def _sign_of_polynomial(x: FracElement, polynomial: Any) -> int:
    signs = {1 if coefficient > 0 else -1 for coefficient in polynomial.coeffs()}
    if len(signs) > 1:
        raise Undecided(f"the sign of {x} is undecided")
    return signs.pop() if signs else 0


def least(a: Any, b: Any) -> Any:
    """Return the smaller of two, which their difference's sign must tell."""
    return a if sign(b - a) >= 0 else b


def largest(a: Any, b: Any) -> Any:
    """Return the larger of two, which their difference's sign must tell."""
    return a if sign(a - b) >= 0 else b


def _divide(a: Any, b: Any) -> Any:
    if sign(b) == 0:
        return 0
    return (a if isinstance(a, FracElement) else Fraction(a)) / b  # two integers would make a float


DECIDED = elementwise(least, largest, lambda x, a, b: a if sign(x) > 0 else b, _divide, Fraction)
"""The arithmetic of rational functions of positive symbols: what a rule asks is decided for all of their values."""


def functions_of(symbols: Iterable[Expr]) -> dict[Expr, FracElement]:
    """Return these symbols as rational functions, to compute with."""
    ordered = sorted(symbols, key=str)
    return dict(zip(ordered, FracField(ordered, ZZ).gens, strict=True)) if ordered else {}


def expression_of(value: Any) -> Expr:
    """Return a number or a rational function as a SymPy expression."""
    return value.as_expr() if isinstance(value, FracElement) else sympy.Rational(value)


def evaluated(expression: Expr, values: dict[Expr, Any], tokens: Sequence[dict[Expr, Any]] = ()) -> Any:
    """Return what an expression is where its symbols have these values, numbers or rational functions.

    tokens: the values of each token's own symbols, which a sum `Over` all tokens runs through. Raises `Undecided`
    where a minimum, a maximum or a condition needs a sign that isn't known.
    """
    if expression in values:
        return values[expression]
    if expression.is_Rational:
        return Fraction(int(expression.p), int(expression.q))
    if isinstance(expression, Over):
        return sum(evaluated(expression.args[0], values | token, tokens) for token in tokens)
    if isinstance(expression, Piecewise):
        pieces: Any = expression.args
        piece = next(value for value, condition in pieces if _holds(condition, values, tokens))
        return evaluated(piece, values, tokens)
    parts = [evaluated(part, values, tokens) for part in expression.args]
    return _COMBINED[expression.func](*parts)


def _holds(condition: Expr, values: dict[Expr, Any], tokens: Sequence[dict[Expr, Any]]) -> bool:
    if condition in (True, False):
        return bool(condition)
    assert condition.rel_op in ("<", ">"), f"{condition} isn't strict"
    return sign(evaluated(condition.gts - condition.lts, values, tokens)) > 0


def _power(base: Any, exponent: Any) -> Any:
    if exponent < 0 and base == 0:
        raise SpecnbError("a statement divides by 0 in one of its cases; expected a Piecewise for that case")
    return base ** int(exponent)


_COMBINED: dict[Any, Callable[..., Any]] = {
    sympy.Add: lambda *terms: sum(terms),
    sympy.Mul: lambda *factors: prod(factors),
    sympy.Pow: _power,
    sympy.Min: lambda *parts: reduce(least, parts),
    sympy.Max: lambda *parts: reduce(largest, parts),
    sympy.Abs: lambda x: largest(x, -x),
}
