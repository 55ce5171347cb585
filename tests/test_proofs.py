"""Proofs: the true ones verify, a false one can't be made, and they read the very functions that compute."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import sympy
from sympy import Max, Min

from specnb import proofs, rules
from specnb.errors import SpecnbError
from specnb.proofs import Over, equal, p, q, summed


def test_losslessness_for_any_vocabulary():
    proof = proofs.losslessness()
    assert repr(proof) == "Proof('The token rule emits p': 8 steps verified in 24 cases)"
    identity = next(step for step in proof.steps if "This identity" in step.claim)
    assert identity.statement == r"\left(p_{v} - q_{v}\right)_+ + \min\left(p_{v}, q_{v}\right) = p_{v}"
    assert identity.cases[1] == ("p_v > q_v = 0", "p_{v}")


# Of the 5^V combinations (p > q and p = q each with q > 0 and with q = 0, and p < q) two laws of sum 1 allow
# those with both signs, 5^V − 4^V − 3^V + 2^V, and those with neither unless all is 0, 2^V − 1.
@pytest.mark.parametrize("V", [1, 2, 3])
def test_losslessness_by_cases(V):
    combinations = 5**V - 4**V - 3**V + 2 * 2**V - 1
    proof = proofs.losslessness_by_cases(V)
    assert [len(step.cases) for step in proof.steps] == [combinations] * 4


@pytest.mark.parametrize(
    ("lhs", "rhs", "case"),
    [
        (Min(p, q) + Max(q - p, 0), p, "p_v > q_v > 0"),
        (q * Min(1, p / q), Max(p, q), "p_v > q_v > 0"),
        (Min(p, q), q, "p_v < q_v"),
        (Max(p - q, 0), p - q, "p_v < q_v"),
        (q, sympy.Integer(0), "p_v > q_v > 0"),
    ],
)
def test_a_false_equality_names_its_case(lhs, rhs, case):
    with pytest.raises(SpecnbError, match=f"'nonsense' is false for {case}"):
        equal("nonsense", lhs, rhs)


def test_what_is_given_only_narrows_the_cases():
    assert [case for case, _ in equal("", Max(p - q, 0), p, given=(q,)).cases] == [
        "p_v > q_v = 0",
        "p_v = q_v = 0",
    ]
    with pytest.raises(SpecnbError, match="is false for p_v > q_v = 0"):
        equal("nonsense", Max(p - q, 0), q, given=(q,))


@pytest.mark.parametrize(
    ("lhs", "rhs"),
    [
        (Over(Min(p, q)), 1 - Over(sympy.Abs(p - q))),
        (Over(Min(p, q)), sympy.Integer(1)),
        (Over(Max(p - q, 0)), 2 * Over(Max(q - p, 0))),
        (Over(p * q), sympy.Integer(1)),
    ],
)
def test_a_false_sum_fails(lhs, rhs):
    with pytest.raises(SpecnbError, match="the terms differ by"):
        summed("nonsense", lhs, rhs)


def test_a_true_sum_uses_that_rows_sum_to_one():
    assert summed("", Over(3 * p - q), sympy.Integer(2)).note.endswith("which sums to 0.")
    with pytest.raises(SpecnbError, match="isn't a constant times a sum"):
        summed("nonsense", Over(p) ** 2, sympy.Integer(1))


def _resample_from_p(draft, q, p, xp):
    return rules.token(draft, q, p, xp)[0], rules.normalised(p, xp)


def _always_accepting(draft, q, p, xp):
    _, correction = rules.token(draft, q, p, xp)
    return rules.draft_by_draft(1 + 0 * xp.at(q, draft), correction[..., :-1, :], p, xp)[0], correction


@pytest.mark.parametrize("law", [_resample_from_p, _always_accepting])
def test_a_wrong_rule_has_no_proof(law):
    with pytest.raises(SpecnbError, match="rule 'mine' isn't lossless for p_1 > q_1 > 0, p_2 < q_2"):
        proofs.losslessness_by_cases(2, rules.Rule("mine", law, "this test", lossless=False))


def _bonus_from(row):
    def law(draft, q, p, xp):
        lengths, correction = rules.token(draft, q, p, xp)
        bonus = (q if row == "q" else p)[..., :1, :]
        return lengths, np.concatenate([correction[..., :1, :], bonus], axis=-2)

    return law


@pytest.mark.parametrize("row", ["q", "the row before"])
def test_a_wrong_bonus_has_no_proof(row):
    with pytest.raises(SpecnbError, match="isn't lossless: its bonus isn't s for p_1 > q_1 > 0, p_2 < q_2: got"):
        proofs.losslessness_by_cases(2, rules.Rule("mine", _bonus_from(row), "this test", lossless=False))


def _half_as_willing(draft, q, p, xp):
    """Keep a draft half as often as one may, and correct by all that is then lacking: lossless, but slower."""
    keep = rules.acceptance(q, p[..., :1, :], xp) / 2
    lacking = rules.normalised(p[..., :1, :] - q * keep, xp)
    return rules.draft_by_draft(xp.at(keep, draft), lacking, p, xp)


def test_a_lossless_rule_that_rejects_too_much_is_told_so():
    with pytest.raises(SpecnbError, match="rule 'mine' rejects more than it must for p_1 > q_1 > 0"):
        proofs.losslessness_by_cases(2, rules.Rule("mine", _half_as_willing, "this test", lossless=True))


def test_what_the_cases_cant_decide_is_no_proof():
    with pytest.raises(SpecnbError, match=r"rule 'match' can't be carried by these cases: .* is undecided"):
        proofs.losslessness_by_cases(2, "match")


@pytest.mark.parametrize("vocabulary", [0, -1, 1.5, True, None])
def test_there_is_no_proof_of_nothing(vocabulary):
    with pytest.raises(SpecnbError, match=r"vocabulary is .*; expected an integer >= 1"):
        proofs.losslessness_by_cases(vocabulary)


def test_sides_may_be_numbers_but_no_texts():
    assert equal("x", 1, 1).statement == "1 = 1"
    assert summed("x", 1, 1).statement == "1 = 1"
    for prove in (equal, summed):
        with pytest.raises(SpecnbError, match="'p' can't be a side of an equality"):
            prove("x", "p", p)


def test_notebooks_show_every_step_and_case():
    proof = proofs.losslessness()
    markdown, latex = proof._repr_markdown_(), proof._repr_latex_()
    for number, step in enumerate(proof.steps, 1):
        assert f"**{number}.** {step.claim}" in markdown
        assert step.statement in markdown
        assert step.statement in latex
        assert all(f"{case} & {value}" in markdown for case, value in step.cases)
    assert proof.steps[0]._repr_latex_().startswith("$\\displaystyle")


def test_laws_and_rules_need_neither_torch_nor_sympy():
    assert _loaded_by("specnb.laws, specnb.rules") == set()


def test_proofs_need_no_torch():
    assert _loaded_by("specnb.proofs") == {"sympy"}


def _loaded_by(modules):
    code = f"import sys, {modules}; print(*({{'torch', 'sympy', 'triton'}} & set(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(run.stdout.split())
