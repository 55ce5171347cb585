"""A rule's own law, read for one draft in every combination of cases and compared with formulas."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
from sympy.polys.fields import FracElement

from specnb.errors import SpecnbError
from specnb.proofs.cases import Case
from specnb.proofs.rows import Rows, combinations, rows_of
from specnb.proofs.steps import Step
from specnb.rules import Rule
from specnb.symbols import Expr, Undecided, alpha, latex


@dataclass(frozen=True)
class Reading:
    """What a rule does with one draft from q: its acceptance, the law [V] that it emits, and the bonus [x, V]."""

    accepted: Any
    law: Any
    bonus: Any  # after each draft x that it may keep


@dataclass(frozen=True)
class Claim:
    """What a rule's law is said to be: why, the left side in LaTeX, the right side, and what to read for the left.

    right: of one token's p, q and s, of sums over all, and of alpha, the acceptance as it was read. complaint: what
    the rule does if the claim is false.
    """

    text: str
    left: str
    right: Expr
    read: Callable[[Reading, Rows], Any]
    complaint: str = "isn't lossless"


def read(rule: Rule, rows: Rows) -> Reading:
    """Return what a rule makes of a draft from q, added up over all drafts."""
    V = len(rows.p)
    lengths, correction = rule.law(
        np.arange(V)[:, None], np.tile(rows.q, (V, 1, 1)), np.tile(np.array([rows.p, rows.s]), (V, 1, 1)), rows.xp
    )
    lost, kept = rows.q * lengths[:, 0], rows.q * lengths[:, 1]
    # What never happens, a draft of probability 0 or a correction of a draft that is always kept, may be anything.
    laws = [*lengths[rows.q != 0], *correction[lost != 0, 0], *correction[kept != 0, 1]]
    if any(sum(law) != 1 or (rows.xp.max(law, 0) != law).any() for law in laws):
        raise SpecnbError(f"rule {rule.name!r} isn't a law for {rows.name}: expected entries >= 0, of sum 1")
    return Reading(sum(kept), kept + (lost[:, None] * correction[:, 0]).sum(0), correction[kept != 0, 1])


def verified(rule: Rule, of_tokens: Iterable[tuple[Case, ...]], claims: tuple[Claim, ...]) -> tuple[Step, ...]:
    """Return a verified step for each claim, over every combination of each token's cases.

    Raises `SpecnbError` with the combination, and laws of it, for which a claim is false, and with the combination
    for which the rule asks a sign that it leaves open.
    """
    names, shown = [], []
    for combination in combinations(*of_tokens):
        rows = rows_of(combination)
        reading = carried(rule, rows.name, lambda rows=rows: read(rule, rows))
        rows = replace(rows, known=rows.known | {alpha: reading.accepted})
        names.append(rows.name.replace(", ", r",\; "))
        shown.append([_checked(rule, claim, reading, rows) for claim in claims])
    columns = zip(claims, zip(*shown, strict=True), strict=True)
    return tuple(
        Step(claim.text, f"{claim.left} = {latex(claim.right)}", tuple(zip(names, values, strict=True)))
        for claim, values in columns
    )


def carried(rule: Rule, case: str, reading: Callable[[], Any]) -> Any:
    """Return what is read of a rule, or raise that this case doesn't decide what it asks."""
    try:
        return reading()
    except Undecided as error:
        raise SpecnbError(
            f"rule {rule.name!r} can't be carried by these cases: for {case}, {error}; "
            "specnb.laws.joint_law checks it in fractions"
        ) from None


def _checked(rule: Rule, claim: Claim, reading: Reading, rows: Rows) -> str:
    """Return a claim's right side in LaTeX once the left has been found to equal it."""
    left = claim.read(reading, rows)
    tokens = range(len(rows.p)) if np.ndim(left) else [0]
    right = np.array([rows.value(claim.right, v) for v in tokens], object)
    require_equal(f"rule {rule.name!r} {claim.complaint} for {rows.name}", left, right, rows.laws)
    shown = ", ".join(rows.shown(claim.right, v) for v in tokens)
    return f"({shown})" if np.ndim(left) else shown


def require_equal(complaint: str, left: Any, right: Any, laws: dict[str, Any]) -> None:
    """Raise the complaint where two arrays differ as functions, with an example in numbers."""
    for got, expected in zip(*(side.reshape(-1) for side in np.broadcast_arrays(left, right)), strict=True):
        if got - expected != 0:
            raise SpecnbError(f"{complaint}: {example(got, expected, laws)}")


def example(got: Any, expected: Any, laws: dict[str, Any]) -> str:
    """Return numbers for which two different rational functions differ, the smallest that a few tries find."""
    entries = [got, expected, *(entry for law in laws.values() for entry in np.ravel(law))]
    symbols = next((entry.field.gens for entry in entries if isinstance(entry, FracElement)), ())
    draws = random.Random(0)
    for largest in itertools.count(1):
        point = [draws.randint(1, largest) for _ in symbols]
        if _at(got, point) != _at(expected, point):
            break
    values = ", ".join(f"{name} = {_text(x, point)}" for name, x in laws.items())
    return f"with {values} it is {_at(got, point)}, expected {_at(expected, point)}"


def _text(x: Any, point: list[int]) -> str:
    return f"({', '.join(str(_at(entry, point)) for entry in x)})" if np.ndim(x) else str(_at(x, point))


def _at(x: Any, point: list[int]) -> Fraction:
    if not isinstance(x, FracElement):
        return Fraction(x)
    return Fraction(int(x.numer(*point)), int(x.denom(*point)))
