"""Losslessness, checked by SymPy: every step is an equality that it verifies by cases on the sign of p − q.

A step that doesn't hold can't be made: `equal`, `summed` and `losslessness_by_cases` raise, naming the case
in which the two sides differ. p and q are the target's and the draft's probability of one token v; a rule of
`specnb.rules` is read by the same function that computes its numbers.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import sympy
from sympy import Max, Min, Piecewise, Symbol

from specnb import rules
from specnb.errors import SpecnbError
from specnb.rules import Rule
from specnb.symbols import DECIDED, Case, Expr, Over, Undecided, cases, decided, in_case, latex, p, q

rejected, residual_mass = sympy.symbols("R M", positive=True)


@dataclass(frozen=True)
class Step:
    """An equality that was verified: why it is there, the statement in LaTeX, and the value in each case."""

    claim: str
    statement: str
    cases: tuple[tuple[str, str], ...] = ()
    note: str = ""

    def _repr_latex_(self) -> str:
        return f"$\\displaystyle {self.statement}$"

    def _repr_markdown_(self) -> str:
        rows = r" \\ ".join(rf"{case} & {value}" for case, value in self.cases)
        table = rf"$$\begin{{array}}{{l|l}} \text{{case}} & \text{{both sides}} \\ \hline {rows} \end{{array}}$$"
        parts = [self.claim, f"$${self.statement}$$", table if self.cases else "", self.note]
        return "\n\n".join(part for part in parts if part)


@dataclass(frozen=True, repr=False)
class Proof:
    """Verified steps in order; a notebook shows them one below the other."""

    title: str
    steps: tuple[Step, ...]

    def __repr__(self) -> str:
        """Say how much was verified, on one line."""
        cases = sum(len(step.cases) for step in self.steps)
        return f"Proof({self.title!r}: {len(self.steps)} steps verified in {cases} cases)"

    def _repr_latex_(self) -> str:
        lines = [rf"({number}) && {step.statement}" for number, step in enumerate(self.steps, 1)]
        return "$$\\begin{aligned} " + " \\\\ ".join(lines) + " \\end{aligned}$$"

    def _repr_markdown_(self) -> str:
        steps = [f"**{number}.** {step._repr_markdown_()}" for number, step in enumerate(self.steps, 1)]
        return "\n\n".join([f"### {self.title}", *steps])


def equal(claim: str, lhs: Expr, rhs: Expr, *, given: tuple[Expr, ...] = (), where: dict | None = None) -> Step:
    """Return the verified step lhs = rhs, for one token v in every case.

    given: expressions known to be 0; cases in which one of them isn't are left out. where: what earlier steps
    have shown some symbols to be. Raises `SpecnbError` with the case in which the sides differ.
    """
    lhs, rhs = _expression(lhs), _expression(rhs)
    values = []
    for case in cases():
        if any(in_case(zero, case).is_zero is False for zero in given):
            continue
        left, right = (in_case(side.subs(where or {}), case) for side in (lhs, rhs))
        if sympy.cancel(left - right) != 0:
            raise SpecnbError(
                f"{claim!r} is false for {case.name}: the left side is {case.show(left)}, "
                f"the right side {case.show(right)}"
            )
        values.append((case.name, latex(case.show(right))))
    return Step(claim, _statement(lhs, rhs), tuple(values))


def summed(claim: str, lhs: Expr, rhs: Expr) -> Step:
    """Return the verified step lhs = rhs between sums over v, for rows p and q that each sum to 1.

    With 1 = Σp the two sides are one sum each; they agree if their terms differ by a multiple of p − q in
    every case, since Σ(p − q) = 0. Raises `SpecnbError` with the case in which they don't.
    """
    lhs, rhs = _expression(lhs), _expression(rhs)
    term = sum((_term(part) for part in sympy.Add.make_args(sympy.expand(lhs - rhs))), sympy.Integer(0))
    multiple = decided(term.subs({p: 2, q: 1}))
    for case in cases():
        left = in_case(term - multiple * (p - q), case)
        if sympy.cancel(left) != 0:
            raise SpecnbError(f"{claim!r} is false for {case.name}: the terms differ by {case.show(left)}")
    gap = latex(multiple * (p - q))
    return Step(claim, _statement(lhs, rhs), note=(
        f"Term by term, in all {len(cases())} cases, the sides are equal." if multiple == 0 else
        f"Term by term, in all {len(cases())} cases, the sides differ by ${gap}$, which sums to 0."
    ))  # fmt: skip


def losslessness() -> Proof:
    """Return the proof that the rule `token` emits p, for any vocabulary (Leviathan et al., appendix A.1)."""
    ratio = Piecewise((p / q, q > 0), (0, True))
    kept, lacking, excess = Min(p, q), Max(p - q, 0), Max(q - p, 0)
    correction = Symbol("r_v", nonnegative=True)
    steps = (
        equal("A draft $v$ is kept with probability $\\min(1, p_v/q_v)$. What is kept of $q_v$ is what it "
              "shares with $p_v$.", q * Min(1, ratio), kept),
        equal("What is rejected of $q_v$ is its excess over $p_v$.", q - kept, excess),
        equal("What the kept part lacks of $p_v$ is the residual. This identity carries everything.",
              kept + lacking, p),
        equal("A token that the draft never proposes, $q_v = 0 < p_v$, comes from the residual alone.",
              lacking, p, given=(q,)),
        summed("What is rejected in all, $R$ on the left, is what is lacking in all, $M$ on the right.",
               Over(excess), Over(lacking)),
        summed("The acceptance $\\alpha$, on the left, is one minus the total variation of $p$ and $q$.",
               Over(kept), 1 - Over(sympy.Abs(p - q)) / 2),
        equal("If anything is rejected, corrections drawn from the residual over its mass $M$ restore $p$, "
              "since $R = M$ by step 5.",
              kept + rejected * lacking / residual_mass, p, where={rejected: residual_mass}),
        equal("If nothing is rejected, $R = M = 0$ and no term of either sum is positive, so $p = q$: the "
              "kept part is all of $p$, whatever the correction $r_v$ would be. No special case is needed.",
              kept + rejected * correction, p, given=(lacking, excess), where={rejected: 0}),
    )  # fmt: skip
    return Proof("The token rule emits p", steps)


def losslessness_by_cases(vocabulary: int = 2, rule: str | Rule = "token") -> Proof:
    """Return the proof that a rule's own law, as `specnb.rules` computes it, emits p from V >= 1 symbolic pairs.

    Every combination of the five cases per token that two rows of sum 1 allow is checked, at γ = 1; the bonus
    must have the law of the target's next row, another symbol s_v wherever p_v isn't 0. Raises `SpecnbError`
    with the case in which a wrong rule emits something else or a right one rejects more than it must, and for
    a rule that asks more than the sign of p − q, as `match` does: `specnb.laws` enumerates those in fractions.
    """
    rule = rules.get(rule)
    if type(vocabulary) is not int or vocabulary < 1:
        raise SpecnbError(f"vocabulary is {vocabulary!r}; expected an integer >= 1: there is no proof of nothing")
    checked: list[tuple[str, list[str]]] = []
    for combination in _possible(vocabulary):
        try:
            checked.append((_name(combination), _check_step(rule, combination)))
        except Undecided as error:
            raise SpecnbError(
                f"rule {rule.name!r} can't be carried by these cases: for {_name(combination)}, {error}; "
                "specnb.laws.joint_law checks it in fractions"
            ) from None
    V = vocabulary
    statements = (
        ("The rejected mass is the residual mass.",
         r"\sum_x q_x P(n = 0 \mid x) = \sum_v (p_v - q_v)_+"),
        ("The acceptance is one minus the total variation.",
         r"\sum_x q_x P(n = 1 \mid x) = 1 - \tfrac12 \sum_v |p_v - q_v|"),
        ("The emitted law is the target's, entry by entry.",
         r"q_v P(n = 1 \mid v) + \sum_x q_x P(n = 0 \mid x) \, P(v \mid n = 0, x) = p_v"),
        ("After a draft that can be accepted, the bonus has the law $s$ of the target's next row.",
         r"P(v \mid n = 1, x) = s_v"),
    )  # fmt: skip
    steps = tuple(
        Step(claim, statement, tuple((case.replace(", ", r",\; "), values[i]) for case, values in checked))
        for i, (claim, statement) in enumerate(statements)
    )
    return Proof(f"Rule {rule.name}, V = {V}", steps)


def _check_step(rule: Rule, combination: tuple[Case, ...]) -> list[str]:
    """Return rejected mass, acceptance, emitted law and bonus of a rule in one combination, each verified."""
    P, Q = (np.array([getattr(case, name) for case in combination], object) for name in ("p", "q"))
    S, V = _next_row(combination), len(combination)
    rows = np.tile(np.array([P, S]), (V, 1, 1))
    lengths, correction = rule.law(np.arange(V)[:, None], np.tile(Q, (V, 1, 1)), rows, DECIDED)
    lost, kept = Q * lengths[:, 0], Q * lengths[:, 1]
    law = kept + (lost[:, None] * correction[:, 0]).sum(axis=0)
    _verify(f"rule {rule.name!r} isn't lossless", zip(law, P, strict=True), combination)
    bonus = zip((kept[:, None] * correction[:, 1]).flat, (kept[:, None] * S).flat, strict=True)
    _verify(f"rule {rule.name!r} isn't lossless: its bonus isn't s", bonus, combination)
    above = sum((case.excess for case in combination if case.excess.is_positive), sympy.Integer(0))
    amounts = [(lost.sum(), above), (kept.sum(), 1 - above)]
    _verify(f"rule {rule.name!r} rejects more than it must", amounts, combination)
    shown = [latex(_show(value, combination)) for value in (above, 1 - above, *P, *S)]
    return [*shown[:2], f"({', '.join(shown[2 : 2 + V])})", f"({', '.join(shown[2 + V :])})"]


def _verify(complaint: str, pairs: Iterable[tuple[Expr, Expr]], combination: tuple[Case, ...]) -> None:
    """Raise about the first pair whose sides differ for rows of sum 1."""
    for left, right in pairs:
        if sympy.cancel(_with_unit_mass(left - right, combination)) != 0:
            raise SpecnbError(
                f"{complaint} for {_name(combination)}: "
                f"got {_show(left, combination)}, expected {_show(right, combination)}"
            )


def _next_row(combination: tuple[Case, ...]) -> np.ndarray:
    """Return symbols s for the row after an accepted draft, with its zeros where p has them."""
    names = [Symbol(f"s_{v}", positive=True) for v in range(1, len(combination) + 1)]
    return np.array([case.p and s for case, s in zip(combination, names, strict=True)], object)


def _possible(vocabulary: int) -> Iterator[tuple[Case, ...]]:
    """Yield the combinations of cases in which p and q can both sum to 1."""
    for combination in itertools.product(*(cases(v) for v in range(1, vocabulary + 1))):
        signs = {sympy.sign(case.excess) for case in combination}
        if {1, -1} <= signs or (signs == {0} and any(case.q != 0 for case in combination)):
            yield combination


def _with_unit_mass(expression: Expr, combination: tuple[Case, ...]) -> Expr:
    """Return an expression after solving Σp = Σq for one excess, Σq = 1 for one common part, and Σs = 1."""
    gap = sympy.expand(sum(case.excess for case in combination))
    if gap != 0:
        below = next(s for s in sorted(gap.free_symbols, key=str) if s.name.startswith("e_"))
        solved = {below: gap + below}
    else:
        solved = {}
    total = sympy.expand(sum(case.q for case in combination)).subs(solved)
    common = next(s for s in sorted(total.free_symbols, key=str) if s.name[0] in "ab")
    *others, last = (s for s in _next_row(combination) if s != 0)
    return expression.subs(solved).subs({common: 1 - total + common, last: 1 - sum(others)})


def _name(combination: tuple[Case, ...]) -> str:
    return ", ".join(case.name for case in combination)


def _show(value: Expr, combination: tuple[Case, ...]) -> Expr:
    names = {symbol: meaning for case in combination for symbol, meaning in case.names.items()}
    return sympy.cancel(sympy.sympify(value).subs(names, simultaneous=True))


def _expression(side: Any) -> Expr:
    """Return one side of a statement, also where it is a number."""
    try:
        return sympy.sympify(side, strict=True)
    except sympy.SympifyError:
        raise SpecnbError(f"{side!r} can't be a side of an equality; expected a SymPy expression") from None


def _statement(lhs: Expr, rhs: Expr) -> str:
    return f"{latex(lhs)} = {latex(rhs)}"


def _term(part: Expr) -> Expr:
    """Return what one summand of a statement adds at v: a constant is that constant times p, since Σp = 1."""
    constant, sums = part.as_independent(Over)
    if constant.has(p, q) or not (sums in (0, 1) or isinstance(sums, Over)):
        raise SpecnbError(f"{part} isn't a constant times a sum over v")
    return constant * (sums.args[0] if isinstance(sums, Over) else p)
