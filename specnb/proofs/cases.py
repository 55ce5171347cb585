"""The orders that a token's p and q can have, each written in positive symbols, so that SymPy knows it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import sympy
from sympy import Symbol

from specnb.errors import SpecnbError
from specnb.symbols import Expr, evaluated, expression_of, factored, functions_of, p, q, sign

ZERO, ONE = sympy.Integer(0), sympy.Integer(1)


@dataclass(frozen=True)
class Case:
    """One order of p and q for token v: p = q + d with d > 0, and so on.

    p, q: in positive symbols. names: what those are in terms of p and q. also: what other symbols of a statement,
    as a leniency l, are in this case.
    """

    name: str
    p: Expr
    q: Expr
    names: dict[Expr, Expr] = field(default_factory=dict)
    also: dict[Expr, Expr] = field(default_factory=dict)

    @cached_property
    def side(self) -> int:
        """Return the sign of p − q."""
        return sign(*self.values(p - q))

    @property
    def own(self) -> list[Expr]:
        """Return the symbols that p and q are multiples of, which a parameter's aren't."""
        parameters = set().union(*(value.free_symbols for value in self.also.values()))
        return [symbol for symbol in self.names if symbol not in parameters]

    def values(self, *expressions: Expr) -> tuple[Any, ...]:
        """Return what expressions of p, q and other symbols are in this case, as rational functions."""
        given = {symbol: sympy.sympify(value) for symbol, value in ({p: self.p, q: self.q} | self.also).items()}
        asked = set().union(*(expression.free_symbols for expression in expressions)) - set(given)
        if clash := asked & set(self.names):
            raise SpecnbError(f"a statement has {clash.pop()}, in which its cases are written; expected another symbol")
        known = functions_of(asked.union(*(value.free_symbols for value in given.values())))
        for symbol, value in given.items():
            known[symbol] = evaluated(value, known)
        return tuple(evaluated(expression, known) for expression in expressions)

    def show(self, value: Any) -> Expr:
        """Return a value of this case in the symbols p and q."""
        return factored(expression_of(value).subs(self.names, simultaneous=True))


def cases(v: str | int = "v") -> tuple[Case, ...]:
    """Return the six cases that token v can be in: p above q, equal or below, with zeros apart."""
    return tuple(Case(*order) for order in _orders(*_of_token(v), v))


def lenient_cases(v: str | int, l: Expr) -> tuple[Case, ...]:  # noqa: E741  the paper's own letter
    """Return the eight cases of p, q and l·q, where 0 < l < 1 is a number or a symbol."""
    P, Q = _of_token(v)
    value, t, also = _below_one(l)
    return tuple(Case(name, x, y, names | t, also) for name, x, y, names in _orders_around(P, Q, v, l, value))


def block_cases(v: str | int, a: Symbol, value: Expr = None) -> tuple[Case, ...]:
    """Return the eight cases of q, p and a·p, where 0 < a < 1 is any such number, or this value."""
    P, Q = _of_token(v)
    value, t, also = (value, {}, {a: value}) if value is not None else _below_one(a)
    return tuple(Case(name, x, y, names | t, also) for name, y, x, names in _orders_around(Q, P, v, a, value))


def up_to_one(a: Symbol) -> tuple[Case, ...]:
    """Return the twenty cases of q, p and a·p for 0 <= a <= 1."""
    ends = (replace(case, name=f"{case.name}, {a} = {end}", also={a: end}) for end in (ZERO, ONE) for case in cases())
    return (*block_cases("v", a), *ends)


def scaled_cases(a: Symbol) -> tuple[Case, ...]:
    """Return the eight cases of a·p and q for a >= 0: the six for a > 0, and two for a = 0."""
    b, e = sympy.symbols("b e", positive=True)
    positive = (Case(name, scaled / a, other, names) for name, scaled, other, names in _orders(a * p, q, "v"))
    return (
        *(replace(case, name=f"{case.name}, {a} > 0") if case.p == 0 else case for case in positive),
        Case(f"{a} = 0, {q} > 0", b, e, {b: p, e: q}, {a: ZERO}),
        Case(f"{a} = 0, {q} = 0", b, ZERO, {b: p}, {a: ZERO}),
    )


def match_cases(p_x: Symbol, drafted: Symbol) -> tuple[Case, ...]:
    """Return the five cases of token v and a draft x, `drafted` telling whether they are the same."""
    b, d = sympy.symbols("b d", positive=True)
    less, names = {p_x: 1 - d}, {d: 1 - p_x}
    return (
        Case(f"v = x, {p_x} < 1", 1 - d, q, names, {**less, drafted: ONE}),
        Case(f"v = x, {p_x} = 1", ONE, q, {}, {p_x: ONE, drafted: ONE}),
        Case(rf"v \ne x, {p} > 0", b, q, {b: p, **names}, {**less, drafted: ZERO}),
        Case(rf"v \ne x, {p} = 0, {p_x} < 1", ZERO, q, names, {**less, drafted: ZERO}),
        Case(rf"v \ne x, {p} = 0, {p_x} = 1", ZERO, q, {}, {p_x: ONE, drafted: ZERO}),
    )


def certain_cases() -> tuple[Case, ...]:
    """Return the two cases of p alone: below 1, or certain."""
    d = Symbol("d", positive=True)
    return Case(f"{p} < 1", 1 - d, q, {d: 1 - p}), Case(f"{p} = 1", ONE, q)


def mass_cases(S: Symbol, R: Symbol) -> tuple[Case, ...]:
    """Return the four cases of two masses 0 <= S <= R."""
    s, r = sympy.symbols("s r", positive=True)
    return (
        Case(f"{R} > {S} > 0", p, q, {s: S, r: R - S}, {S: s, R: s + r}),
        Case(f"{R} > {S} = 0", p, q, {r: R}, {S: ZERO, R: r}),
        Case(f"{R} = {S} > 0", p, q, {s: S}, {S: s, R: s}),
        Case(f"{R} = {S} = 0", p, q, {}, {S: ZERO, R: ZERO}),
    )


def ordered_cases(e: Symbol) -> tuple[Case, ...]:
    """Return the six orders of p, q and e; the gaps may be 0, of which minima and maxima make nothing special."""
    a, d, f = sympy.symbols("a d f", positive=True)
    found = []
    for least, middle, most in itertools.permutations((p, q, e)):
        values, names = {least: a, middle: a + d, most: a + d + f}, {a: least, d: middle - least, f: most - middle}
        found.append(Case(rf"{least} \le {middle} \le {most}", values[p], values[q], names, {e: values[e]}))
    return tuple(found)


def factor_cases(l: Symbol, alpha: Symbol, x: Symbol) -> tuple[Case, ...]:  # noqa: E741  the paper's own letter
    """Return the two signs of a number x, where l < 1 and α <= 1."""
    t, u, y = sympy.symbols("t u y", positive=True)
    names, also = {t: 1 / l - 1, u: 1 / alpha - 1}, {l: 1 / (1 + t), alpha: 1 / (1 + u)}
    return (
        Case(rf"{x} \ge 0", p, q, {**names, y: x}, {**also, x: y}),
        Case(rf"{x} \le 0", p, q, {**names, y: -x}, {**also, x: -y}),
    )


def _of_token(v: str | int) -> tuple[Expr, Expr]:
    return Symbol(f"p_{v}", nonnegative=True), Symbol(f"q_{v}", nonnegative=True)


def _below_one(r: Expr) -> tuple[Expr, dict, dict]:
    """Return a factor between 0 and 1 in a positive symbol, what that is, and what the factor is; a number as it is."""
    t = Symbol("t", positive=True)
    return (1 / (1 + t), {t: 1 / r - 1}, {r: 1 / (1 + t)}) if r.is_Symbol else (r, {}, {})


def _orders(X: Expr, Y: Expr, v: str | int) -> tuple[tuple[str, Expr, Expr, dict], ...]:
    """Return the six orders of two numbers: a name, both in positive symbols, and what those are."""
    a, d, e = sympy.symbols(f"a_{v} d_{v} e_{v}", positive=True)
    x, y = _text(X), _text(Y)
    return (
        (f"{x} > {y} > 0", a + d, a, {a: Y, d: X - Y}),
        (f"{x} > {y} = 0", d, ZERO, {d: X}),
        (f"{x} = {y} > 0", a, a, {a: X}),
        (f"{x} = {y} = 0", ZERO, ZERO, {}),
        (f"{y} > {x} > 0", a, a + e, {a: X, e: Y - X}),
        (f"{y} > {x} = 0", ZERO, e, {e: Y}),
    )


def _orders_around(X: Expr, Y: Expr, v: str | int, r: Expr, value: Expr) -> Iterator[tuple[str, Expr, Expr, dict]]:
    """Yield the eight orders of X, Y and r·Y, where 0 < r < 1 has this value."""
    a, e, f = sympy.symbols(f"a_{v} e_{v} f_{v}", positive=True)
    x, y, ry = _text(X), _text(Y), _text(r * Y)
    *above, _, never = _orders(X, Y, v)
    yield from above
    between = (e + f) / (1 / value - 1)  # e is what X lacks of Y, f what X/r has more than Y
    yield f"{y} > {x} > {ry}", between, between + e, {e: Y - X, f: X / r - Y}
    yield f"{x} = {ry} > 0", a, a / value, {a: X}
    yield f"{ry} > {x} > 0", a, a / value + e, {a: X, e: Y - X / r}
    yield never


def _text(expression: Expr) -> str:
    """Return a product as it reads in a sentence and in LaTeX alike."""
    return str(expression).replace("*", " ")
