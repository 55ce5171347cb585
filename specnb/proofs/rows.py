"""Laws p and q of V tokens in every combination of their orders, for a rule to read as it reads numbers."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
from sympy import Symbol

from specnb.arithmetic import Arithmetic
from specnb.proofs.cases import Case
from specnb.symbols import DECIDED, Expr, evaluated, expression_of, factored, functions_of, latex, p, q

s = Symbol("s_v", nonnegative=True)
"""A token's probability in the row after an accepted draft."""

Combination = tuple[Case, ...]
Values = dict[Expr, Any]


@dataclass(frozen=True)
class Rows:
    """One combination of cases: laws p, q and s, arrays [V] of rational functions that sum to 1 for all values.

    s has the zeros of p. known: what other symbols of a statement are, as a leniency l.
    """

    cases: Combination
    p: Any
    q: Any
    s: Any
    known: Values

    @property
    def name(self) -> str:
        """Return the cases, token by token."""
        return name_of(self.cases)

    @property
    def laws(self) -> dict[str, Any]:
        """Return the laws, and the parameters of the cases, by name."""
        parameters = dict.fromkeys(symbol for case in self.cases for symbol in case.also)
        return {"p": self.p, "q": self.q, "s": self.s} | {str(symbol): self.known[symbol] for symbol in parameters}

    @property
    def xp(self) -> Arithmetic:
        """Return the arithmetic for these laws, to which a parameter may be one of the known symbols."""
        # An array, since SymPy's elements don't multiply arrays from the left.
        return replace(DECIDED, number=lambda value: np.array(self.known.get(value) or Fraction(value), object))

    def value(self, formula: Expr, v: int = 0) -> Any:
        """Return what a formula of p, q, s and sums over tokens is at token v."""
        rows = zip(self.p, self.q, self.s, strict=True)
        tokens = [self.known | {p: P, q: Q, s: S} for P, Q, S in rows]
        return evaluated(formula, tokens[v], tokens)

    def shown(self, formula: Expr, v: int = 0) -> str:
        """Return the same in LaTeX, in the tokens' own p, q and s, and in what else is known by its symbol."""
        names = {symbol: meaning for case in self.cases for symbol, meaning in case.names.items()}
        next_row = _next_row(len(self.cases))
        own = functions_of([*names, *next_row, *self.known])
        tokens = [
            own | {p: evaluated(case.p, own), q: evaluated(case.q, own), s: own[S] if P != 0 else 0}
            | {symbol: evaluated(value, own) for symbol, value in case.also.items()}
            for case, P, S in zip(self.cases, self.p, next_row, strict=True)
        ]  # fmt: skip
        value = expression_of(evaluated(formula, tokens[v], tokens))
        return latex(factored(value.subs(names, simultaneous=True)))


def combinations(*of_tokens: tuple[Case, ...]) -> Iterator[Combination]:
    """Yield the combinations of each token's cases in which both p and q can sum to 1."""
    for cases in itertools.product(*of_tokens):
        sides = {case.side for case in cases}
        if {1, -1} <= sides or (sides == {0} and any(case.q != 0 for case in cases)):
            yield cases


def rows_of(cases: Combination) -> Rows:
    """Return the laws that a combination stands for."""
    known = known_in(cases)
    P, Q = laws(cases, known)
    also = {symbol: evaluated(value, known) for case in cases for symbol, value in case.also.items()}
    return Rows(cases, P, Q, next_law(P, known), also)


def known_in(*rows: Combination) -> Values:
    """Return the positive symbols in which rows of cases, and a row after them, are written, as rational functions.

    In each row one symbol of the tokens above and one of those below are 1: scaling either changes no law.
    """
    values = (value for cases in rows for case in cases for value in (case.p, case.q, *case.also.values()))
    after = [S for case, S in zip(rows[-1], _next_row(len(rows[-1])), strict=True) if case.p != 0]
    own = set().union(*(value.free_symbols for value in values), after)
    units = {after[0], *(unit for cases in rows for unit in _units(cases))}
    return functions_of(own - units) | dict.fromkeys(units, Fraction(1))


def _units(cases: Combination) -> list[Expr]:
    sides = {case.side for case in cases if case.own}
    return [next(case.own[0] for case in cases if case.side == side and case.own) for side in sides - {0} or {0}]


def laws(cases: Combination, known: Values) -> tuple[np.ndarray, np.ndarray]:
    """Return p and q as laws: pairs of equal sums, over that sum.

    The sums become equal by scaling the pairs with p > q by what the others lack, and those with p < q by what these
    have too much; every two laws are such pairs.
    """
    P, Q = (np.array([evaluated(getattr(case, row), known) for case in cases], object) for row in ("p", "q"))
    sides = np.array([case.side for case in cases])
    above, below = ((P - Q)[sides == 1].sum(), (Q - P)[sides == -1].sum())
    scale = np.array([{1: below, 0: 1, -1: above}[side] for side in sides], object)
    total = (P * scale).sum()
    return P * scale / total, Q * scale / total


def next_law(P: np.ndarray, known: Values) -> np.ndarray:
    """Return the law s of symbols of its own, with the zeros of p."""
    weights = np.array([known[S] if x != 0 else 0 for x, S in zip(P, _next_row(len(P)), strict=True)], object)
    return weights / weights.sum()


def name_of(cases: Combination) -> str:
    """Return the cases, token by token."""
    return ", ".join(case.name for case in cases)


def _next_row(vocabulary: int) -> list[Symbol]:
    return [Symbol(f"s_{v}", positive=True) for v in range(1, vocabulary + 1)]
