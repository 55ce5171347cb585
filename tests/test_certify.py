"""Certificates: every lossless rule earns one exactly, nothing wrong or unverified does."""

from __future__ import annotations

from fractions import Fraction as F

import numpy as np
import pytest

from specnb import laws, mistakes, rules
from specnb.errors import SpecnbError
from specnb.laws.certificates import Certificate, Coverage
from specnb.laws.comparing import in_floats, in_fractions
from specnb.laws.examples import DENOMINATOR, KINDS, exactly, trees
from specnb.laws.scenarios import as_scenario

LOSSLESS = list(rules.RULES)
LOSSY = [rules.lenient(F(1, 2)), rules.lenient(F(1, 2), "p - lq"), rules.ensemble(F(3, 4)), rules.typical()]
MISTAKES = [mistake.use for mistake in mistakes.CATALOGUE]
REUSED = mistakes.get("uniforms reused across steps").use
SMALL = [(2, 1, 1), (2, 2, 1), (3, 2, 1), (2, 1, 2)]

# Of joint laws of up to 5^3 tokens in float64, entry by entry; the bar of the package.
ROUNDING = 1e-14


@pytest.mark.parametrize("rule", LOSSLESS)
def test_lossless_rules_certify_exactly(rule):
    certificate = laws.certify(rule, sizes=[*SMALL, (2, 2, 2)], examples=2, exact=True)
    assert certificate
    assert (certificate.verdict, certificate.distance, certificate.worst) == ("LOSSLESS", 0, None)
    assert isinstance(certificate.distance, F)
    assert certificate.examples == 5 * len(KINDS) * 2
    assert all(each.exact for each in certificate.coverage)


def test_the_default_covers_small_sizes_exactly_and_larger_ones_in_floats():
    certificate = laws.certify("block")
    assert certificate
    assert {(each.vocabulary, each.gamma, each.steps) for each in certificate.coverage if not each.exact} == {
        (3, 3, 1), (5, 2, 1), (3, 1, 2), (9, 1, 1)
    }  # fmt: skip
    assert (certificate.examples, len(certificate.coverage)) == (480, 96)
    assert all(abs(each.shortfall) < 1e-9 for each in certificate.coverage)
    assert certificate.acceptance[0] == pytest.approx(certificate.acceptance[1], abs=1e-9)


def test_token_falls_short_of_the_best_rule_and_match_more():
    token, match = (laws.certify(rule, sizes=SMALL, exact=False) for rule in ("token", "match"))
    assert token
    assert match
    assert all(each.shortfall > -1e-9 for each in (*token.coverage, *match.coverage))
    assert match.acceptance[0] < token.acceptance[0] < token.acceptance[1] == match.acceptance[1]
    assert all(each.shortfall < 1e-9 for each in token.coverage if each.gamma == 1)


@pytest.mark.parametrize("use", [*LOSSY, *MISTAKES], ids=lambda use: getattr(use, "label", use.name))
def test_what_is_wrong_gets_no_certificate_but_its_worst_example(use):
    reused = use is REUSED
    certificate = laws.certify(use, sizes=[(2, 1, 2)] if reused else SMALL, examples=1 if reused else 3)
    assert not certificate
    assert certificate.verdict == "NOT LOSSLESS"
    worst = certificate.worst
    assert worst.distance == certificate.distance > 0
    p, q = worst.p.__getitem__, worst.q.__getitem__
    joint = laws.joint_law(use, p=p, q=q, gamma=worst.gamma, steps=worst.steps)
    promised = _promised(use, p, worst)
    assert laws.total_variation(joint, promised) == pytest.approx(worst.distance, abs=ROUNDING)
    assert joint[worst.tokens] == pytest.approx(worst.emitted)
    assert promised[worst.tokens] == pytest.approx(worst.promised)
    assert f"Worst: {worst}." in repr(certificate)


def _promised(use, p, worst):
    change = getattr(use, "promised", None)
    rows = p if change is None else lambda prefix: [x * x / sum(y * y for y in p(prefix)) for x in p(prefix)]
    return laws.target_law(rows, worst.steps * (worst.gamma + 1))


def test_steps_that_share_uniforms_are_wrong_in_two_steps_only():
    assert laws.certify(REUSED, sizes=[(2, 1, 1)], examples=1).verdict == "LOSSLESS"
    assert laws.certify(REUSED, sizes=[(2, 1, 2)], examples=1).verdict == "NOT LOSSLESS"


def test_every_example_of_shared_uniforms_is_compared_with_its_own_rows():
    three = trees("random", vocabulary=2, gamma=1, steps=2, examples=3, seed=0)
    together = in_floats(as_scenario(REUSED), *three, 1, 2)
    for i in range(3):
        alone = in_floats(as_scenario(REUSED), *([rows[i : i + 1] for rows in tree] for tree in three), 1, 2)
        assert alone.distance(0) == together.distance(i)


def test_drafts_drawn_otherwise_have_another_best_rule():
    """On one-hot drafts no lossless rule accepts more than p(x), which the rule `match` does."""
    rows = trees("random", vocabulary=3, gamma=1, steps=1, examples=3, seed=0)
    certificate = laws.certify(mistakes.get("arg-max draft, soft q").use, sizes=[(3, 1, 1)], examples=3)
    covered = next(each for each in certificate.coverage if each.kind == "random")
    top = rows[1][0][:, 0].argmax(-1)
    assert covered.best == pytest.approx(rows[0][0][np.arange(3), 0, top].mean(), abs=1e-9)
    assert covered.accepted > covered.best


def _off_by_one(draft, q, p, xp):
    return rules.token(draft, q, xp.join([p[..., 1:, :], p[..., :1, :]], -2), xp)


def test_rows_off_by_one_show_only_where_rows_depend_on_the_prefix():
    rule = rules.Rule("off by one", _off_by_one, "this test", lossless=False)
    assert laws.falsify(rule, vocabularies=[2], gammas=[1, 2]) is None
    assert laws.certify(rule, sizes=SMALL, examples=2).verdict == "NOT LOSSLESS"


def _token_in_floats(draft, q, p, xp):
    lengths, correction = rules.token(draft, q, p, xp)
    return 1.0 * lengths, correction


@pytest.mark.parametrize(
    ("rule", "verdict", "reason"),
    [
        (rules.typical(), "NOT LOSSLESS", "takes logarithms"),
        (rules.Rule("floats", _token_in_floats, "this test", lossless=True), "LOSSLESS", "mixes floats into Fractions"),
    ],
)
def test_laws_that_work_in_floats_alone(rule, verdict, reason):
    certificate = laws.certify(rule, sizes=SMALL, examples=2)
    assert certificate.verdict == verdict
    assert not any(each.exact for each in certificate.coverage)
    asked = laws.certify(rule, sizes=SMALL, examples=2, exact=True)
    assert (asked.verdict, asked.coverage, bool(asked)) == ("INCONCLUSIVE", (), False)
    assert reason in asked.reason
    assert reason in repr(asked)


@pytest.mark.parametrize(
    ("kwargs", "reason"),
    [
        ({"examples": 0}, "there was no example"),
        ({"sizes": []}, "there was no example"),
        ({"sizes": [(3, 0, 1), (2, 0, 2)]}, "there was no draft to judge"),
        ({"sizes": [(1, 2, 1)]}, "there was no draft to judge"),
    ],
)
def test_nothing_verified_is_inconclusive(kwargs, reason):
    certificate = laws.certify("token", **kwargs)
    assert not certificate
    assert (certificate.verdict, certificate.reason) == ("INCONCLUSIVE", reason)
    assert repr(certificate) == f"token: INCONCLUSIVE\n{reason.capitalize()}."
    assert "INCONCLUSIVE" in certificate._repr_html_()
    assert certificate._repr_latex_() == r"$\text{token: INCONCLUSIVE}$"


def test_a_wrong_bonus_shows_without_a_draft():
    assert laws.certify(mistakes.get("arg-max correction").use, sizes=[(3, 0, 1)]).verdict == "NOT LOSSLESS"


def _returning(change):
    return rules.Rule("odd", lambda *given: change(*rules.token(*given)), "this test", lossless=True)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda lengths, correction: (lengths[..., :-1], correction), r"lengths of odd has shape \(2, 2, 1\);"),
        (lambda lengths, correction: (lengths[0, 0], correction), r"lengths of odd has shape \(2,\); expected"),
        (lambda lengths, correction: (lengths, correction[..., :1]), r"correction of odd has shape \(2, 2, 2, 1\)"),
        (lambda lengths, correction: (lengths, correction[..., 0, :]), "correction of odd has shape"),
        (lambda lengths, correction: lengths, "the law of odd returned ndarray; expected lengths, correction"),
        (lambda lengths, correction: None, "the law of odd returned NoneType"),
        (lambda lengths, correction: (lengths * np.nan, correction), r"lengths of odd is \[nan, nan\] for the draft"),
        (lambda lengths, correction: (lengths / 2, correction), "expected a law: nowhere negative, of sum 1"),
        (lambda lengths, correction: (lengths + np.array([1, -1]), correction), "lengths of odd is .*expected a law"),
        (lambda lengths, correction: (lengths, 2 * correction), "correction of odd is .*expected a law"),
    ],
)
def test_what_is_no_law_is_refused(change, sentence):
    for judge in (laws.certify, laws.falsify):
        with pytest.raises(SpecnbError, match=sentence.replace("2, 2, ", r"\d+, \d+, ")):
            judge(_returning(change))


@pytest.mark.parametrize(
    ("kwargs", "sentence"),
    [
        ({"rule": "tokens"}, "rule 'tokens' is unknown"),
        ({"rule": "lenient"}, "rule 'lenient' is lossy and has parameters"),
        ({"sizes": [(2, 1)]}, r"sizes is \[\(2, 1\)\]; expected a list of \(V, gamma, steps\)"),
        ({"sizes": 3}, "sizes is 3; expected a list"),
        ({"sizes": [(0, 1, 1)]}, "V is 0; expected an integer >= 1"),
        ({"sizes": [(2, -1, 1)]}, "gamma is -1; expected an integer >= 0"),
        ({"sizes": [(2, 1, 0)]}, "steps is 0; expected an integer >= 1"),
        ({"examples": -1}, "examples is -1; expected an integer >= 0"),
        ({"seed": 0.5}, "seed is 0.5; expected an integer >= 0"),
        ({"exact": "yes"}, "exact is 'yes'; expected True, False or None"),
    ],
)
def test_errors_say_what_came(kwargs, sentence):
    with pytest.raises(SpecnbError, match=sentence):
        laws.certify(**{"rule": "token", **kwargs})


@pytest.mark.parametrize("kind", KINDS)
def test_examples_are_what_they_are_called(kind):
    p, q = trees(kind, vocabulary=4, gamma=1, steps=1, examples=50, seed=0)
    assert [rows.shape for rows in p] == [(50, 1, 4), (50, 4, 4)]
    for rows, others in zip(p, q, strict=True):
        assert ((rows >= 0) & (others >= 0)).all()
        assert (rows.sum(-1) == 1).all()
        assert (others.sum(-1) == 1).all()
        assert (rows * DENOMINATOR == np.rint(rows * DENOMINATOR)).all()
        assert _holds(kind, rows, others)
    assert (p[1][:, 0] != p[1][:, 1]).any()


def _holds(kind, p, q):
    distance = abs(p - q).sum(-1) / 2
    one_hot = (p.max(-1) == 1) | (q.max(-1) == 1)
    return {
        "random": (distance > 0.01).any() and (p > 0).mean() > 0.9,
        "near": (distance <= 0.1 + 4 / DENOMINATOR).all() and (distance > 0).all(),
        "equal": (distance == 0).all(),
        "coarse": (4 * p == np.rint(4 * p)).all() and (p == q).any(),
        "zeros": 0.2 < (p == 0).mean() < 0.6 and 0.2 < (q == 0).mean() < 0.6,
        "disjoint": (distance == 1).all(),
        "one-hot": one_hot.all() and (p.max(-1) < 1).any() and (q.max(-1) < 1).any(),
        "mixed": (distance == 0).any() and (distance == 1).any() and (~one_hot).any(),
    }[kind]


def test_examples_depend_on_the_seed_alone():
    size = {"vocabulary": 3, "gamma": 1, "steps": 1, "examples": 2}
    first, again, other = (trees("random", **size, seed=seed)[0][1] for seed in (0, 0, 1))
    assert (first == again).all()
    assert (first != other).any()
    assert laws.certify("token", sizes=[(2, 1, 1)]) == laws.certify("token", sizes=[(2, 1, 1), (2, 1, 1)])
    assert laws.certify("token", sizes=[(2, 2, 1)]) != laws.certify("token", sizes=[(2, 2, 1)], seed=1)


@pytest.mark.parametrize(
    "rule", [*LOSSLESS, *LOSSY[:-1], *MISTAKES[:-1]], ids=lambda use: getattr(use, "label", str(use))
)
@pytest.mark.parametrize(("V", "gamma", "steps"), [(2, 2, 1), (2, 1, 2), (3, 2, 1)])
def test_float_laws_are_the_fraction_laws(rule, V, gamma, steps):
    for kind in KINDS:
        target, drafted = trees(kind, vocabulary=V, gamma=gamma, steps=steps, examples=2, seed=1)
        floats = in_floats(as_scenario(rule), target, drafted, gamma, steps)
        fractions = in_fractions(as_scenario(rule), exactly(target), exactly(drafted), gamma, steps)
        assert abs(floats.emitted - fractions.emitted.astype(float)).max() < ROUNDING
        assert abs(floats.promised - fractions.promised.astype(float)).max() < ROUNDING


def test_float_laws_of_reused_uniforms_are_the_fraction_laws():
    target, drafted = trees("zeros", vocabulary=2, gamma=1, steps=2, examples=1, seed=1)
    floats = in_floats(as_scenario(REUSED), target, drafted, 1, 2)
    fractions = in_fractions(as_scenario(REUSED), exactly(target), exactly(drafted), 1, 2)
    assert fractions.distance(0) > 0
    assert abs(floats.emitted - fractions.emitted.astype(float)).max() < ROUNDING


@pytest.mark.parametrize("rule", LOSSLESS)
def test_large_sizes(rule):
    assert laws.certify(rule, sizes=[(3, 3, 1)], examples=1, exact=True)
    target, drafted = trees("random", vocabulary=8, gamma=3, steps=1, examples=1, seed=0)
    large = in_floats(as_scenario(rule), target, drafted, 3, 1)
    assert large.emitted.shape == (1, 8, 8, 8, 8)
    assert not large.differs(0)


def test_a_certificate_reads_the_same_everywhere():
    certificate = laws.certify("token", sizes=[(2, 1, 1), (3, 3, 1)], examples=2)
    assert repr(certificate) == (
        "token: LOSSLESS\n"
        "32 examples, 16 of them in Fractions; seed 0.\n"
        "Largest total variation of the joint law: 0 in Fractions and below 1e-12 in float64, which is rounding.\n"
        "Accepted: 0.4316 of the drafts, where the best lossless rule has 0.4353; "
        "at most 0.1080 tokens a step below it."
    )
    assert certificate._repr_latex_() == (
        r"$\text{token}: \quad \max_{32\ \text{examples}} \mathrm{TV}(\text{emitted}, \text{promised}) \approx 0, "
        r"\quad \text{LOSSLESS}$"
    )
    html = certificate._repr_html_()
    assert html == laws.certify("token", sizes=[(2, 1, 1), (3, 3, 1)], examples=2)._repr_html_()
    assert html.count("<tr>") == 2 + 2 + 3
    assert html.count(">rounding<") == len(KINDS)
    assert not any(word in html for word in ("<style", "<svg", "var(", "e-13", "e-16", "e-17"))


def test_a_certificate_of_something_wrong_says_how_wrong():
    certificate = laws.certify(rules.lenient(F(1, 2)), sizes=[(2, 1, 1)], examples=2)
    assert repr(certificate).splitlines()[0] == "lenient(l=1/2, residual=p - q): NOT LOSSLESS"
    assert repr(certificate).splitlines()[2] == "Largest total variation of the joint law: 0.3864."
    assert "= 0.3864, " in certificate._repr_latex_()
    assert r"\text{NOT LOSSLESS}" in certificate._repr_latex_()
    assert certificate.acceptance[0] > certificate.acceptance[1]


def test_names_are_escaped():
    certificate = Certificate("a_b<c>", 0, (Coverage("k<", 2, 1, 1, 1, True, F(0), 0.5, 0.5, 0.0),))
    assert "a_b&lt;c&gt;" in certificate._repr_html_()
    assert "k&lt;" in certificate._repr_html_()
    assert r"\text{a\_b<c>}" in certificate._repr_latex_()


def _writes_into_its_rows(draft, q, p, xp):
    q[...] = p[..., : draft.shape[-1], :]
    return rules.token(draft, q, p, xp)


def _drops_rare_tokens(draft, q, p, xp):
    return rules.token(draft, q, rules.normalised(xp.where(p - 2e-4, p, 0), xp), xp)


def _loses_ids_from_6_on(draft, q, p, xp):
    kept = p.copy()
    kept[..., 6:] = 0
    return rules.token(draft, q, rules.normalised_or(kept, 1 + 0 * p, xp), xp)


@pytest.mark.parametrize("law", [_writes_into_its_rows, _drops_rare_tokens, _loses_ids_from_6_on])
def test_what_only_some_rows_show(law):
    certificate = laws.certify(rules.Rule("mine", law, "this test", lossless=True))
    assert certificate.verdict == "NOT LOSSLESS"


def _divided_by_numpy(draft, q, p, xp):
    G = draft.shape[-1]
    with np.errstate(all="ignore"):
        accept = np.where(xp.at(q, draft) > 0, np.minimum(1, xp.at(p[..., :G, :], draft) / xp.at(q, draft)), 0)
    return rules.draft_by_draft(accept, rules.residual(q, p[..., :G, :], xp), p, xp)


def test_a_law_that_divides_by_zero_in_fractions_is_compared_in_floats():
    certificate = laws.certify(rules.Rule("mine", _divided_by_numpy, "this test", lossless=True), sizes=[(2, 1, 1)])
    assert certificate.verdict == "LOSSLESS"
    assert not all(each.exact for each in certificate.coverage)


@pytest.mark.parametrize("change", [lambda rows, xp: 2 * rows, lambda rows, xp: rows[..., :1]])
@pytest.mark.parametrize("name", ["drafting", "promised"])
def test_a_scenario_makes_laws_of_laws(name, change):
    with pytest.raises(SpecnbError, match=f"{name} made"):
        laws.certify(laws.Scenario("token", **{name: change}))
    with pytest.raises(SpecnbError, match=f"{name} is 3; expected a function"):
        laws.Scenario("token", **{name: 3})
