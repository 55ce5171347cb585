"""Proofs: the true ones verify, a false one can't be made, and they read the very functions that compute."""

from __future__ import annotations

import itertools
import subprocess
import sys
from fractions import Fraction

import numpy as np
import pytest
import sympy
from sympy import Abs, Max, Min, Symbol

from specnb import laws, mistakes, proofs, rules
from specnb.errors import SpecnbError
from specnb.proofs import Over, at_most, equal, p, q, summed
from specnb.proofs.bias import kept as kept_leniently
from specnb.proofs.cases import block_cases, cases, lenient_cases, scaled_cases, up_to_one
from specnb.proofs.rows import combinations, rows_of
from specnb.proofs.two_drafts import _paths, two_drafts
from specnb.symbols import Undecided, evaluated, factored, functions_of, leniency, sign

LENIENT = lenient_cases("v", leniency)
V3A = [Fraction(5, 10), Fraction(3, 10), Fraction(2, 10)], [Fraction(2, 10), Fraction(3, 10), Fraction(5, 10)]


@pytest.mark.parametrize(
    ("proof", "verified"),
    [
        (lambda: proofs.losslessness(), "'The token rule emits p': 8 steps verified in 40 cases"),
        (lambda: proofs.losslessness("match"), "'The match rule emits p': 6 steps verified in 28 cases"),
        (lambda: proofs.losslessness("block"), "'The block rule emits p': 7 steps verified in 62 cases"),
        (lambda: proofs.lenient_bias(), "'Lenient with the residual (p − q)+: the bias': 7 steps verified in 50 cases"),
        (lambda: proofs.lenient_bias("p - lq"),
         "'Lenient with the residual (p − l q)+: the bias': 5 steps verified in 34 cases"),
        (proofs.best_acceptance, "'No rule accepts more than 1 − TV(p, q) + ε': 3 steps verified in 18 cases"),
    ],
)  # fmt: skip
def test_proofs_for_any_vocabulary(proof, verified):
    assert repr(proof()) == f"Proof({verified})"


def test_the_identity_that_carries_everything():
    identity = next(step for step in proofs.losslessness().steps if "This identity" in step.claim)
    assert identity.statement == r"\left(p_{v} - q_{v}\right)_+ + \min\left(p_{v}, q_{v}\right) = p_{v}"
    assert identity.cases[1] == ("p_v > q_v = 0", "p_{v}")


@pytest.mark.parametrize("rule", ["coupled", rules.get("token"), None])
def test_what_has_no_proof_for_any_vocabulary(rule):
    with pytest.raises(SpecnbError, match=r"no proof for any vocabulary of rule .*, only of token, match, block"):
        proofs.losslessness(rule)


# Of the 6^V combinations (p > q, p = q and p < q, each with the lesser above 0 and 0) two laws of sum 1 allow those
# with both signs, 6^V − 2·4^V + 2^V, and those with neither unless all is 0, 2^V − 1.
@pytest.mark.parametrize(
    ("rule", "V"), [*itertools.product(("token", "match", "block", "coupled"), (1, 2)), ("token", 3)]
)
def test_losslessness_by_cases(rule, V):
    combinations = 6**V - 2 * 4**V + 2 * 2**V - 1
    proof = proofs.losslessness_by_cases(V, rule)
    assert [len(step.cases) for step in proof.steps] == [combinations] * 3


def test_acceptance_of_match_is_the_sum_of_products():
    acceptance = proofs.losslessness_by_cases(2, "match").steps[2]
    assert acceptance.statement.endswith(r"= \sum_v p_{v} q_{v}")
    assert acceptance.cases[0] == (r"p_1 > q_1 > 0,\; q_2 > p_2 > 0", "p_{1} q_{1} + p_{2} q_{2}")


def test_losslessness_by_cases_of_two_drafts():
    proof = proofs.losslessness_by_cases(2, "block", gamma=2)
    assert repr(proof) == f"Proof('Rule block, V = 2, γ = 2': 8 steps verified in {3 * 11 + 5 * 208} cases)"


def test_block_accepts_more_than_token_somewhere_and_token_as_much_as_itself():
    gains = []
    for paths in itertools.islice(_paths(2), 0, None, 8):
        for rule in ("token", "block"):
            lengths, _ = paths.law_of(rules.get(rule))
            gain = (paths.q2 * (lengths[:, 1] + 2 * lengths[:, 2])).sum() - paths.accepted_by_token
            gains.append((rule, sign(gain)))
    assert set(gains) == {("token", 0), ("block", 0), ("block", 1)}


@pytest.mark.parametrize(("V", "gamma"), [(3, 2), (2, 3), (2, 0), (2, None)])
def test_larger_sizes_are_for_enumeration(V, gamma):
    with pytest.raises(SpecnbError, match=r"the cases carry gamma = 1, .* specnb\.laws\.joint_law checks larger sizes"):
        proofs.losslessness_by_cases(V, "block", gamma=gamma)


@pytest.mark.parametrize("vocabulary", [0, -1, 1.5, True, None])
def test_there_is_no_proof_of_nothing(vocabulary):
    for prove in (proofs.losslessness_by_cases, proofs.lenient_bias_by_cases):
        with pytest.raises(SpecnbError, match=r"vocabulary is .*; expected an integer >= 1"):
            prove(vocabulary)


@pytest.mark.parametrize(
    ("lhs", "rhs", "case"),
    [
        (Min(p, q) + Max(q - p, 0), p, "p_v > q_v > 0"),
        (q * Min(1, p / q), Max(p, q), "p_v > q_v > 0"),
        (Min(p, q), q, "q_v > p_v > 0"),
        (Max(p - q, 0), p - q, "q_v > p_v > 0"),
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


def test_a_statement_is_about_something():
    with pytest.raises(SpecnbError, match="'nothing' is said of no case"):
        equal("nothing", p, q, given=(p + 1,))
    with pytest.raises(SpecnbError, match="a statement has d_v, in which its cases are written"):
        equal("their own", Symbol("d_v", positive=True), p - q)


@pytest.mark.parametrize(
    ("lhs", "rhs"),
    [
        (Over(Min(p, q)), 1 - Over(Abs(p - q))),
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


def test_a_false_inequality_names_its_case():
    assert at_most("", Min(p, q), p).note == "In none of 6 cases is the left side larger."
    with pytest.raises(SpecnbError, match="'nonsense' is false for p_v > q_v > 0: the right side is less by p_v - q_v"):
        at_most("nonsense", p, q)


def test_an_undecided_sign_is_no_proof():
    with pytest.raises(Undecided, match=r"the sign of .* is undecided"):
        equal("", Max(p - q / 2, 0), Max(p - q / 2, 0))


def test_a_division_by_zero_is_no_proof():
    with pytest.raises(SpecnbError, match="divides by 0 in one of its cases; expected a Piecewise"):
        equal("", q * Min(1, p / q), Min(p, q))


@pytest.mark.parametrize(
    ("prove", "false"),
    [
        # The correction after a rejected draft of `match` drawn from p, not from p without the draft.
        (equal, (p + (1 - p) * p, p)),
        # Block's acceptance, with the token rule's residual; and a rescue that comes to S + 1 − a, not to S.
        (equal, (Min(Symbol("a") * p, q) + Max(p - q, 0), Symbol("a") * p, up_to_one(Symbol("a")))),
        (summed, (Over(Min(Symbol("a") * p, q)) + Over(Max(Symbol("a") * p - q, 0)), 1, scaled_cases(Symbol("a")))),
        # Block accepting twice what it shares.
        (at_most, (2 * Symbol("a") * Min(p, q), Min(Symbol("a") * p, q), up_to_one(Symbol("a")))),
        # Leniency: kept without 1/l; lossless; on the line with half the bias.
        (equal, (Min(p, q), kept_leniently, LENIENT)),
        (equal, (kept_leniently + Max(p - q, 0), p, LENIENT)),
        (summed, (Over(kept_leniently),
                  1 - Over(Abs(p - q)) / 2 + Over(Max(kept_leniently - p, 0)) / 2, LENIENT)),
        (summed, (Over(Max(p - leniency * q, 0)), 1 - Over(kept_leniently), LENIENT)),
    ],
)  # fmt: skip
def test_a_wrong_step_fails(prove, false):
    lhs, rhs, *by = false
    with pytest.raises(SpecnbError, match="'nonsense' is false for"):
        prove("nonsense", lhs, rhs, by=by[0] if by else None)


def _always_accepting(draft, q, p, xp):
    _, correction = rules.token(draft, q, p, xp)
    return rules.draft_by_draft(1 + 0 * xp.at(q, draft), correction[..., :-1, :], p, xp)[0], correction


def _match_from_p(draft, q, p, xp):
    return rules.match(draft, q, p, xp)[0], rules.normalised(p, xp)


WRONG = {
    "resample from p": mistakes.get("resample from p").use,
    "swapped ratio": mistakes.get("swapped ratio").use,
    "always accepting": rules.Rule("always accepting", _always_accepting, "this test", lossless=False),
    "match from p": rules.Rule("match from p", _match_from_p, "this test", lossless=False),
    "ensemble": rules.ensemble(0.75),
    "lenient": rules.lenient(0.5),
    "lenient, p - lq": rules.lenient(Fraction(1, 3), "p - lq"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_rule_has_no_proof(name):
    with pytest.raises(SpecnbError, match=r"isn't lossless for p_1 > q_1 > 0, q_2 > p_2 .*: with p = .*, expected"):
        proofs.losslessness_by_cases(2, WRONG[name])


def test_the_complaint_has_an_example():
    with pytest.raises(SpecnbError, match=r"with p = \(2/3, 1/3\), q = \(1/3, 2/3\), s = .* it is 5/9, expected 2/3"):
        proofs.losslessness_by_cases(2, WRONG["resample from p"])
    p, q = [Fraction(2, 3), Fraction(1, 3)], [Fraction(1, 3), Fraction(2, 3)]
    assert laws.joint_law(WRONG["resample from p"], p=p, q=q, gamma=1).sum(1)[0] == Fraction(5, 9)


def _bonus_from(row):
    def law(draft, q, p, xp):
        lengths, correction = rules.token(draft, q, p, xp)
        bonus = (q if row == "q" else p)[..., :1, :]
        return lengths, np.concatenate([correction[..., :-1, :], bonus], axis=-2)

    return law


@pytest.mark.parametrize("row", ["q", "the row before"])
@pytest.mark.parametrize("gamma", [1, 2])
def test_a_wrong_bonus_has_no_proof(row, gamma):
    rule = rules.Rule("mine", _bonus_from(row), "this test", lossless=False)
    with pytest.raises(SpecnbError, match=r"isn't lossless.* bonus .*for p_1 > q_1 > 0|for p_1 > q_1 > 0.*, its bonus"):
        proofs.losslessness_by_cases(2, rule, gamma=gamma)


def _half_as_willing(draft, q, p, xp):
    """Keep a draft half as often as one may, and correct by all that is then lacking: lossless, but slower."""
    keep = rules.acceptance(q, p[..., :1, :], xp) / 2
    lacking = rules.normalised(p[..., :1, :] - q * keep, xp)
    return rules.draft_by_draft(xp.at(keep, draft), lacking, p, xp)


def test_a_lossless_rule_that_rejects_too_much_is_told_so():
    with pytest.raises(SpecnbError, match="rule 'mine' rejects more than it must for p_1 > q_1 > 0"):
        proofs.losslessness_by_cases(2, rules.Rule("mine", _half_as_willing, "this test", lossless=True))


def test_what_the_cases_cant_decide_is_no_proof():
    with pytest.raises(SpecnbError, match=r"rule 'coupled' can't be carried by these cases: .* is undecided"):
        proofs.losslessness_by_cases(3, "coupled")


def test_two_drafts_of_wrong_rules_have_no_proof():
    with pytest.raises(SpecnbError, match=r"'block without rescue' doesn't treat a first draft .*, P\(n >= 1\): with"):
        proofs.losslessness_by_cases(2, mistakes.get("block without rescue").use, gamma=2)
    with pytest.raises(SpecnbError, match=r"'resample from p' .*, its correction: with"):
        proofs.losslessness_by_cases(2, mistakes.get("resample from p").use, gamma=2)
    with pytest.raises(SpecnbError, match="'match' doesn't treat a first draft as 'token' does"):
        proofs.losslessness_by_cases(2, "match", gamma=2)


def test_block_with_the_token_residual_fails_at_three_tokens_and_is_right_at_two():
    wrong = mistakes.get("block with the token residual").use
    with pytest.raises(SpecnbError, match=r"its second token: with .* it is 5/27, expected 1/6") as found:
        two_drafts(wrong, 3)
    assert "p = (1/3, 1/3, 1/3), q = (1/6, 1/6, 2/3), p' = (1/3, 1/3, 1/3), q' = (2/3, 2/9, 1/9)" in str(found.value)
    assert _second_after(wrong, draft=2) == Fraction(5, 27)
    assert _second_after(rules.get("block"), draft=2) == Fraction(1, 6)
    # Of two tokens at most one has a·p > q, and it is the one with p > q: the two residuals are the same law.
    for paths in itertools.islice(_paths(2), 0, None, 8):
        (lengths, correction), (_, right) = paths.law_of(wrong), paths.law_of(rules.get("block"))
        assert not np.any((correction - right)[lengths != 0])


def _second_after(rule, draft):
    """Return P(the draft is kept, then a second token 1 or 2 comes) for the rows of the complaint, by hand."""
    third = Fraction(1, 3)
    p, q = [[third] * 3] * 3, [[third / 2, third / 2, 2 * third], [Fraction(2, 3), Fraction(2, 9), Fraction(1, 9)]]
    found = []
    for v in range(3):
        lengths, correction = laws.law([[draft, y] for y in range(3)], [q] * 3, [p] * 3, rule=rule)
        emitted = [lengths[y, 2] * (y == v) + lengths[y, 1] * correction[y, 1, v] for y in range(3)]
        found.append(sum(q[1][y] * emitted[y] for y in range(3)))
    return found[1]


@pytest.mark.parametrize("residual", ["p - q", "p - lq"])
@pytest.mark.parametrize("V", [1, 2])
def test_lenient_bias_by_cases(residual, V):
    # Of the 8^V combinations (p < q parted by p > l q, p = l q, p < l q) those with both signs, and all equal ones.
    combinations = 8**V - 6**V - 4**V + 2 * 2**V - 1
    steps = proofs.lenient_bias_by_cases(V, residual).steps
    assert [len(step.cases) for step in steps] == [combinations] * (4 if residual == "p - q" else 2)


@pytest.mark.slow
def test_lenient_bias_by_cases_of_three_tokens():
    assert "4 steps verified in 988 cases" in repr(proofs.lenient_bias_by_cases(3))


def test_lenient_bias_reads_the_rule(monkeypatch):
    monkeypatch.setattr(rules, "residual", lambda q, p, xp: rules.normalised(p, xp))
    for residual, complaint in (("p - q", "emits something else"), ("p - lq", "errs otherwise")):
        with pytest.raises(SpecnbError, match=f"rule 'lenient' {complaint} for p_1 > q_1 > 0.* l = .* it is"):
            proofs.lenient_bias_by_cases(2, residual)


@pytest.mark.parametrize("prove", [proofs.lenient_bias, lambda residual: proofs.lenient_bias_by_cases(2, residual)])
def test_an_unknown_residual_is_an_error(prove):
    with pytest.raises(SpecnbError, match="residual is 'p'; expected one of p - q, p - lq"):
        prove("p")


def test_the_bias_of_lenient_in_numbers():
    p, q, l = *V3A, Fraction(1, 2)  # noqa: E741  the paper's own letter
    kept = [min(y, x / l) for x, y in zip(p, q, strict=True)]
    alpha, tv = sum(kept), laws.total_variation(p, q)
    emitted = {r: laws.joint_law(rules.lenient(l, r), p=p, q=q, gamma=1).sum(1) for r in ("p - q", "p - lq")}
    epsilon = {r: laws.total_variation(law, p) for r, law in emitted.items()}
    assert (alpha, epsilon) == (Fraction(9, 10), {"p - q": Fraction(1, 5), "p - lq": Fraction(5, 22)})
    assert alpha == 1 - tv + epsilon["p - q"] < 1 - tv + epsilon["p - lq"]
    factor = (1 - l) / (1 - l * alpha)
    assert list(emitted["p - lq"] - p) == [factor * (k - alpha * x) for k, x in zip(kept, p, strict=True)]


def test_every_two_laws_are_rows_of_their_combination():
    """Solve the cases' own symbols for given p and q, and find p and q again in the rows that the symbols make."""
    rng = np.random.default_rng(0)
    for _ in range(60):
        p_row, q_row = ([Fraction(int(n), 6) for n in rng.multinomial(6, [0.5, 0.3, 0.2])] for _ in "pq")
        combination = next(c for c in combinations(*(cases(v) for v in (1, 2, 3))) if _fits(c, p_row, q_row))
        rows, point = rows_of(combination), _point(combination, p_row, q_row)
        assert [_number(x, point) for x in rows.p] == p_row
        assert [_number(x, point) for x in rows.q] == q_row


def _fits(combination, p_row, q_row):
    orders = [(case.side, case.p == 0, case.q == 0) for case in combination]
    return orders == [((x > y) - (x < y), x == 0, y == 0) for x, y in zip(p_row, q_row, strict=True)]


def _point(combination, p_row, q_row):
    """Return the symbols' values: those above and those below scaled so that the first of each is 1."""
    pairs = {f"p_{v}": x for v, x in enumerate(p_row, 1)} | {f"q_{v}": y for v, y in enumerate(q_row, 1)}
    side_of = {symbol: case.side for case in combination for symbol in case.own}
    meanings = {symbol: case.names[symbol] for case in combination for symbol in case.own}
    own = {S: evaluated(x, {name: pairs[name.name] for name in x.free_symbols}) for S, x in meanings.items()}
    scale = {side: 1 / next(own[S] for S in own if side_of[S] == side) for side in set(side_of.values())}
    if 1 in scale:
        scale[0] = scale[1] * scale[-1] * laws.total_variation(p_row, q_row)
    return {symbol: value * scale[side_of[symbol]] for symbol, value in own.items()}


def _number(x, point):
    if not hasattr(x, "field"):
        return Fraction(x)
    return evaluated(x.as_expr(), {symbol: point.get(symbol, Fraction(1)) for symbol in x.field.symbols})


def test_leniency_stays_free_in_every_combination():
    for combination in combinations(*(lenient_cases(v, leniency) for v in (1, 2))):
        assert str(rows_of(combination).known[leniency]) == "1/(t + 1)"


def test_the_cases_are_orders():
    """Every case's name is true of its p and q, whatever the values of its symbols."""
    a = Symbol("a")
    for case in (*cases(), *LENIENT, *block_cases("v", a)):
        terms = {"p_v": p, "q_v": q, "0": sympy.Integer(0), "l q_v": leniency * q, "a p_v": a * p}
        names = case.name.replace("=", "> =").split(" > ")
        for left, right in itertools.pairwise(names):
            (gap,) = case.values(terms[left.removeprefix("= ")] - terms[right.removeprefix("= ")])
            assert sign(gap) == (0 if right.startswith("= ") else 1), case.name


def test_signs_of_functions():
    x, y = functions_of(sympy.symbols("x y")).values()
    assert [sign(z) for z in (x + y, -x / y, x - x, (x + 1) / (x * y + 2), Fraction(-1, 2), 0)] == [1, -1, 0, 1, -1, 0]
    with pytest.raises(Undecided, match="the sign of x - y is undecided"):
        sign(x - y)


def test_values_are_shown_without_needless_minuses():
    l, v = sympy.symbols("l v", positive=True)  # noqa: E741  the paper's own letter
    for value, shown in {
        (l - 1) * (v * p - q) / (v * l - 1): (1 - l) * (v * p - q) / (1 - v * l),
        -p * (l - 1) / l: p * (1 - l) / l,
        -(l - 1) * (p - q): (1 - l) * (p - q),
        q - p: q - p,
    }.items():
        assert factored(value) == shown


def test_sides_may_be_numbers_but_no_texts():
    assert equal("x", 1, 1).statement == "1 = 1"
    assert summed("x", 1, 1).statement == "1 = 1"
    assert at_most("x", 1, 1).statement == r"1 \le 1"
    for prove in (equal, summed, at_most):
        with pytest.raises(SpecnbError, match="'p' can't be a side of a statement"):
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


def test_notebooks_show_lemmas_and_say_what_they_leave_out():
    proof = proofs.losslessness("block")
    lemma = "**1.** *Lemma: a prefix whose tests have come to $a$ is kept with probability $a$.*\n\n**1.1.** Say"
    assert lemma in proof._repr_markdown_()
    assert "(1.4) &&" in proof._repr_latex_()
    assert "… and in 7 more cases." in proofs.lenient_bias_by_cases(2).steps[0]._repr_markdown_()


def test_laws_and_rules_need_neither_torch_nor_sympy():
    assert _loaded_by("specnb.laws, specnb.rules") == set()


def test_proofs_need_no_torch():
    assert _loaded_by("specnb.proofs") == {"sympy"}


def _loaded_by(modules):
    code = f"import sys, {modules}; print(*({{'torch', 'sympy', 'triton'}} & set(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(run.stdout.split())
