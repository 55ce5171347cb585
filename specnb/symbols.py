"""SymPy's side of a proof: one token's p and q by cases on the sign of p − q, decided, summed and printed."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any, TypeAlias

import sympy
from sympy import Max, Min, Symbol
from sympy.printing.latex import LatexPrinter

from specnb.arithmetic import elementwise
from specnb.errors import SpecnbError

Expr: TypeAlias = Any  # a SymPy expression; its own annotations promise less than what comes back

p, q = sympy.symbols("p_v q_v", nonnegative=True)


@dataclass(frozen=True)
class Case:
    """One sign of p − q for token v, written so that SymPy knows it: p = q + d with d > 0, and so on."""

    name: str
    p: Expr
    q: Expr
    names: dict[Expr, Expr]  # what the case's own symbols are in terms of p and q

    @property
    def excess(self) -> Expr:
        """Return p − q, whose sign the case knows."""
        return sympy.expand(self.p - self.q)

    def show(self, value: Expr) -> Expr:
        """Return a value of this case in the symbols p and q."""
        return sympy.cancel(value.subs(self.names, simultaneous=True))


def cases(v: str | int = "v") -> tuple[Case, ...]:
    """Return the five cases that token v can be in; p = q and q = 0 < p are among them."""
    P, Q = sympy.symbols(f"p_{v} q_{v}", nonnegative=True)
    a, d, e = sympy.symbols(f"a_{v} d_{v} e_{v}", positive=True)
    b = Symbol(f"b_{v}", nonnegative=True)
    zero = sympy.Integer(0)
    return (
        Case(f"{P} > {Q} > 0", a + d, a, {a: Q, d: P - Q}),
        Case(f"{P} > {Q} = 0", d, zero, {d: P}),
        Case(f"{P} = {Q} > 0", a, a, {a: P}),
        Case(f"{P} = {Q} = 0", zero, zero, {}),
        Case(f"{P} < {Q}", b, b + e, {b: P, e: Q - P}),
    )


class Undecided(SpecnbError):
    """The cases leave open what a rule asks for."""


class Over(sympy.Expr):
    """The sum of an expression over all tokens v, whatever the vocabulary."""


class _Paper(LatexPrinter):
    """Prints as the paper does: (p − q)+ for a maximum with 0, positive terms first, sums over v."""

    def _print_Max(self, expr, exp=None):
        rest = [argument for argument in expr.args if argument != 0]
        return rf"\left({self._print(rest[0])}\right)_+" if len(rest) == 1 else super()._print_Max(expr, exp)

    def _print_Over(self, expr):
        body = self._print(expr.args[0])
        return r"\sum_v " + (rf"\left({body}\right)" if expr.args[0].is_Add else body)

    def _as_ordered_terms(self, expr, order=None):
        return sorted(super()._as_ordered_terms(expr, order), key=lambda term: term.could_extract_minus_sign())


def latex(expression: Expr) -> str:
    """Return an expression in the notation of the paper."""
    return _Paper().doprint(expression)


def in_case(expression: Expr, case: Case) -> Expr:
    """Return an expression of p and q where the case decides every minimum, maximum and condition."""
    return decided(sympy.sympify(expression).subs({p: case.p, q: case.q}, simultaneous=True))


def decided(expression: Expr) -> Expr:
    """Return an expression without minima and maxima, whose order the symbols' assumptions must tell."""
    return expression.replace(Min, _least).replace(Max, lambda *args: -_least(*(-a for a in args)))


def _least(*args: Expr) -> Expr:
    least = args[0]
    for other in args[1:]:
        least = least if _is_nonnegative(other - least) else other
    return least


def _is_nonnegative(x: Expr) -> bool:
    """Tell the sign of an expression, which the symbols' own assumptions must decide."""
    x = sympy.factor(x)
    if x.is_nonnegative:
        return True
    if x.is_nonpositive:
        return False
    raise Undecided(f"the sign of {x} is undecided")


def _is_zero(x: Expr) -> bool:
    zero = sympy.sympify(x).is_zero
    if zero is None:
        raise Undecided(f"whether {x} is 0 is undecided")
    return zero


DECIDED = elementwise(
    lambda a, b: _least(sympy.sympify(a), sympy.sympify(b)),
    lambda a, b: -_least(-sympy.sympify(a), -sympy.sympify(b)),
    lambda x, a, b: b if _is_zero(x) or not _is_nonnegative(x) else a,
    lambda a, b: sympy.Integer(0) if _is_zero(b) else a / b,
    lambda value: value if isinstance(value, sympy.Basic) else sympy.Rational(Fraction(value)),
)
