"""What a proof is made of: equalities and inequalities for one token or summed over all, verified when made."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import sympy

from specnb.errors import SpecnbError
from specnb.proofs.cases import Case, cases
from specnb.symbols import Expr, Over, latex, p, q, sign

SHOWN = 12
"""The cases of a step that a notebook lists; of more it says how many there were."""


@dataclass(frozen=True)
class Step:
    """A statement that was verified: why it is there, itself in LaTeX, and the value of both sides in each case.

    unlisted: how many more cases it was verified in. note: what there is to say of those.
    """

    claim: str
    statement: str
    cases: tuple[tuple[str, str], ...] = ()
    unlisted: int = 0
    note: str = ""

    def _repr_latex_(self) -> str:
        return f"$\\displaystyle {self.statement}$"

    def _repr_markdown_(self) -> str:
        more = f"… and in {len(self.cases) - SHOWN} more cases." if len(self.cases) > SHOWN else ""
        parts = [self.claim, f"$${self.statement}$$", self._table() if self.cases else "", more, self.note]
        return "\n\n".join(part for part in parts if part)

    def _table(self) -> str:
        rows = r" \\ ".join(rf"{case} & {value}" for case, value in self.cases[:SHOWN])
        return rf"$$\begin{{array}}{{l|l}} \text{{case}} & \text{{both sides}} \\ \hline {rows} \end{{array}}$$"


@dataclass(frozen=True, repr=False)
class Proof:
    """Verified steps in order, of which some may be proofs of lemmas; a notebook shows one below the other."""

    title: str
    steps: tuple[Step | Proof, ...]

    def __repr__(self) -> str:
        """Say how much was verified, on one line."""
        steps = self._all()
        cases = sum(len(step.cases) + step.unlisted for _, step in steps)
        return f"Proof({self.title!r}: {len(steps)} steps verified in {cases} cases)"

    def _repr_latex_(self) -> str:
        lines = [rf"({number}) && {step.statement}" for number, step in self._all()]
        return "$$\\begin{aligned} " + " \\\\ ".join(lines) + " \\end{aligned}$$"

    def _repr_markdown_(self) -> str:
        return "\n\n".join([f"### {self.title}", *self._paragraphs()])

    def _paragraphs(self, before: str = "") -> list[str]:
        """Return each step's Markdown under its number, which the steps of a lemma continue."""
        texts = []
        for number, step in enumerate(self.steps, 1):
            if isinstance(step, Proof):
                texts += [f"**{before}{number}.** *Lemma: {step.title}.*", *step._paragraphs(f"{before}{number}.")]
            else:
                texts.append(f"**{before}{number}.** {step._repr_markdown_()}")
        return texts

    def _all(self, before: str = "") -> list[tuple[str, Step]]:
        """Return every step, also of lemmas, with its number."""
        steps = []
        for number, step in enumerate(self.steps, 1):
            inner = step._all(f"{before}{number}.") if isinstance(step, Proof) else [(f"{before}{number}", step)]
            steps += inner
        return steps


def equal(
    claim: str,
    lhs: Expr,
    rhs: Expr,
    *,
    by: tuple[Case, ...] | None = None,
    given: tuple[Expr, ...] = (),
    where: dict | None = None,
) -> Step:
    """Return the verified step lhs = rhs, for one token v in every case.

    by: the cases, those of p and q if None; symbols that they don't explain stand for any positive numbers. given:
    expressions known to be 0; cases in which one of them isn't are left out. where: what earlier steps have shown
    some symbols to be. Raises `SpecnbError` with the case in which the sides differ.

    >>> from sympy import Max, Min
    >>> equal("what is shared and what is lacking", Min(p, q) + Max(p - q, 0), p).cases[1]
    ('p_v > q_v = 0', 'p_{v}')
    """
    lhs, rhs = _expression(lhs), _expression(rhs)
    values = []
    for case in by or cases():
        known = replace(case, also=case.also | (where or {}))
        left, right, *zeros = known.values(lhs, rhs, *given)
        if any(sign(zero) != 0 for zero in zeros):
            continue
        if left - right != 0:
            raise SpecnbError(
                f"{claim!r} is false for {case.name}: the left side is {case.show(left)}, "
                f"the right side {case.show(right)}"
            )
        values.append((case.name, latex(case.show(right))))
    if not values:
        raise SpecnbError(f"{claim!r} is said of no case: in each, one of {given} isn't 0")
    return Step(claim, f"{latex(lhs)} = {latex(rhs)}", tuple(values))


def at_most(claim: str, lhs: Expr, rhs: Expr, *, by: tuple[Case, ...] | None = None) -> Step:
    """Return the verified step lhs <= rhs, for one token v in every case.

    by: the cases, those of p and q if None. Raises `SpecnbError` with the case in which the left side is larger.
    """
    lhs, rhs, by = _expression(lhs), _expression(rhs), by or cases()
    for case in by:
        (gap,) = case.values(rhs - lhs)
        if sign(gap) < 0:
            raise SpecnbError(f"{claim!r} is false for {case.name}: the right side is less by {case.show(-gap)}")
    note = f"In none of {len(by)} cases is the left side larger."
    return Step(claim, rf"{latex(lhs)} \le {latex(rhs)}", unlisted=len(by), note=note)


def summed(claim: str, lhs: Expr, rhs: Expr, *, by: tuple[Case, ...] | None = None, nothing: Expr = p - q) -> Step:
    """Return the verified step lhs = rhs between sums over v, for rows p and q that each sum to 1.

    by: the cases, those of p and q if None. nothing: an expression whose sum is known to be 0. With 1 = Σp the two
    sides are one sum each; they agree if their terms differ by one multiple of `nothing` in every case. Raises
    `SpecnbError` with the case in which they don't.
    """
    lhs, rhs, by = _expression(lhs), _expression(rhs), by or cases()
    term = sum((_term(part) for part in sympy.Add.make_args(sympy.expand(lhs - rhs))), sympy.Integer(0))
    quotients = (case.show(x / zero) for case in by for x, zero in [case.values(term, nothing)] if zero != 0)
    multiple = next(quotients, sympy.Integer(0))
    multiple = sympy.Integer(0) if multiple.has(p, q) else multiple
    for case in by:
        (left,) = case.values(term - multiple * nothing)
        if left != 0:
            raise SpecnbError(f"{claim!r} is false for {case.name}: the terms differ by {case.show(left)}")
    return Step(claim, f"{latex(lhs)} = {latex(rhs)}", unlisted=len(by), note=(
        f"Term by term, in all {len(by)} cases, the sides are equal." if multiple == 0 else
        f"Term by term, in all {len(by)} cases, the sides differ by ${latex(multiple * nothing)}$, which sums to 0."
    ))  # fmt: skip


def _expression(side: Any) -> Expr:
    """Return one side of a statement, also where it is a number."""
    try:
        return sympy.sympify(side, strict=True)
    except sympy.SympifyError:
        raise SpecnbError(f"{side!r} can't be a side of a statement; expected a SymPy expression") from None


def _term(part: Expr) -> Expr:
    """Return what one summand of a statement adds at v: a constant is that constant times p, since Σp = 1."""
    constant, sums = part.as_independent(Over)
    if constant.has(p, q) or not (sums in (0, 1) or isinstance(sums, Over)):
        raise SpecnbError(f"{part} isn't a constant times a sum over v")
    return constant * (sums.args[0] if isinstance(sums, Over) else p)
