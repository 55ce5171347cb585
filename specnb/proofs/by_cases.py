"""Proofs about a rule itself: the function of `specnb.rules` that computes its numbers, read with symbols."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from functools import partial
from typing import Any

from sympy import Max, Min, Piecewise, Rational

from specnb import rules
from specnb.errors import SpecnbError
from specnb.proofs.bias import required_residual
from specnb.proofs.cases import Case, cases, lenient_cases
from specnb.proofs.reading import Claim, Reading, verified
from specnb.proofs.rows import Rows, s
from specnb.proofs.steps import Proof
from specnb.proofs.two_drafts import two_drafts
from specnb.rules import Rule
from specnb.symbols import Over, alpha, largest, leniency, p, q

BY_TOKEN = 1 - Over(Max(p - q, 0))  # 1 − TV(p, q)
ACCEPTED = {"match": Over(p * q)}


def losslessness_by_cases(vocabulary: int = 2, rule: str | Rule = "token", *, gamma: int = 1) -> Proof:
    """Return the proof that a rule's own law, as `specnb.rules` computes it, emits p from symbolic p and q.

    vocabulary: V >= 1 tokens. Every combination of cases that two laws allow is checked. The bonus must have the law of
    the target's next row, another symbol s_v wherever p_v isn't 0; the acceptance must be 1 − TV(p, q), that of `match`
    Σ p·q. gamma: 1, or 2 with V <= 2. Then the rows after a first draft are its own, and a rule must treat that draft
    as `token` does, which `block` does and `match` doesn't, and accept no fewer in expectation.

    Raises `SpecnbError` with the case, and an example, in which a wrong rule emits something else or a right one
    rejects more than it must, and for a rule that asks a sign that the cases leave open.

    >>> losslessness_by_cases(2, "match")
    Proof('Rule match, V = 2': 3 steps verified in 33 cases)
    """
    rule = rules.get(rule)
    V = _required_vocabulary(vocabulary)
    if gamma == 2 and V <= 2:
        first = losslessness_by_cases(V, "token")
        return Proof(f"Rule {rule.name}, V = {V}, γ = 2", (first, *two_drafts(rule, V)))
    if gamma != 1:
        raise SpecnbError(
            f"gamma is {gamma!r} with a vocabulary of {V}; the cases carry gamma = 1, and gamma = 2 with at most 2 "
            "tokens. specnb.laws.joint_law checks larger sizes in fractions"
        )
    return Proof(f"Rule {rule.name}, V = {V}", verified(rule, _cases_for(rule, V), _losslessness_claims(rule)))


def lenient_bias_by_cases(vocabulary: int = 2, residual: str = "p - q") -> Proof:
    """Return the proof of what `lenient(l)` emits, as `specnb.rules` computes it, for symbolic p, q and 0 < l < 1.

    vocabulary: V >= 1 tokens. residual: "p - q" or "p - lq". Raises `SpecnbError` with the case in which the rule does
    something else.
    """
    V, rule = _required_vocabulary(vocabulary), _with_any_leniency(required_residual(residual))
    claims = _token_residual_claims() if residual == "p - q" else _lenient_residual_claims()
    return Proof(f"Rule lenient with the residual ({residual})+, V = {V}", verified(rule, _cases_for(rule, V), claims))


def _losslessness_claims(rule: Rule) -> tuple[Claim, ...]:
    return (
        Claim("The emitted law is the target's, entry by entry.",
              r"q_v P(n = 1 \mid v) + \sum_x q_x P(n = 0 \mid x) \, P(v \mid n = 0, x)", p,
              lambda reading, _: reading.law),
        Claim("After a draft that can be accepted, the bonus has the law $s$ of the target's next row.",
              r"P(v \mid n = 1, x)", s, lambda reading, _: reading.bonus, "isn't lossless: its bonus isn't s"),
        Claim("The acceptance is all that it should be.",
              r"\sum_x q_x P(n = 1 \mid x)", ACCEPTED.get(rule.name, BY_TOKEN),
              lambda reading, _: reading.accepted, "rejects more than it must"),
    )  # fmt: skip


def _token_residual_claims() -> tuple[Claim, ...]:
    kept, lacking = Min(q, p / leniency), Max(p - q, 0)
    correction = Piecewise((lacking / Over(lacking), Over(lacking) > 0), (0, True))
    return (
        _acceptance_claim(),
        Claim("The emitted law: what is kept, and corrections.",
              r"e_v", kept + (1 - alpha) * correction, lambda reading, _: reading.law, "emits something else"),
        Claim("Its total variation from $p$.",
              r"\tfrac12 \sum_v |e_v - p_v|", Over(Max(kept - p, 0)), _distance, "errs otherwise"),
        Claim("What it accepts more than `token` is what it errs.",
              r"\alpha - \tfrac12 \sum_v |e_v - p_v|", BY_TOKEN,
              lambda reading, rows: reading.accepted - _distance(reading, rows), "isn't on the line"),
    )  # fmt: skip


def _lenient_residual_claims() -> tuple[Claim, ...]:
    factor = (1 - leniency) / (1 - leniency * alpha)
    return (
        _acceptance_claim(),
        Claim("The emitted law errs in proportion to how the kept tokens do.",
              r"e_v - p_v", factor * (Min(q, p / leniency) - alpha * p),
              lambda reading, rows: reading.law - rows.p, "errs otherwise"),
    )  # fmt: skip


def _acceptance_claim() -> Claim:
    return Claim("The acceptance.", r"\alpha", Over(Min(q, p / leniency)),
                 lambda reading, _: reading.accepted, "accepts otherwise")  # fmt: skip


def _distance(reading: Reading, rows: Rows) -> Any:
    return sum(largest(x, -x) for x in reading.law - rows.p) / 2


def _with_any_leniency(residual: str) -> Rule:
    rule = rules.lenient(1, residual)
    return replace(rule, law=partial(rule.law, l=leniency), parameters={**rule.parameters, "l": leniency})


def _cases_for(rule: Rule, vocabulary: int) -> list[tuple[Case, ...]]:
    """Return each token's cases: of p and q, and of l·q too for a rule that has a leniency l."""
    l = rule.parameters.get("l", 1)  # noqa: E741  the paper's own letter
    if l == 1:
        return [cases(v) for v in range(1, vocabulary + 1)]
    l = l if l == leniency else Rational(Fraction(l))  # noqa: E741
    return [lenient_cases(v, l) for v in range(1, vocabulary + 1)]


def _required_vocabulary(vocabulary: Any) -> int:
    if type(vocabulary) is not int or vocabulary < 1:
        raise SpecnbError(f"vocabulary is {vocabulary!r}; expected an integer >= 1: there is no proof of nothing")
    return vocabulary
