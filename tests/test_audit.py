"""Audits: exact laws of samplers, every verdict for its reason, and the faults that only boundaries show."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction as F

import goodness
import numpy as np
import pytest
import torch
from transformers.generation import utils

from specnb import laws, mistakes, rules, samplers
from specnb.errors import SpecnbError
from specnb.laws.auditing import calls, cells, gtests, probes, trials
from specnb.samplers import BOUNDARY_FAULTS, token, verify_sampler

SEP = {"p": trials.SEP[0], "q": trials.SEP[1]}
TOY = {"p": trials.TOY[0], "q": trials.TOY[1]}
NAMES = {trial.name: trial for trial in laws.TRIALS}

# What a law over the reals shows of none of these, or barely, and which probes do.
CAUGHT_BY = {
    "closed_comparison": {"u = 0, p(x) = 0"},
    "impossible_drafts_kept": {"q(x) = 0 < p(x)", "q(x) = p(x) = 0", "empty residual", "empty residual, its law"},
    "epsilon_floor": {"empty residual", "empty residual, its law", "residual of mass 2^-20"},
    "unguarded_residual": {"empty residual, its law"},
}


def _total_variations(law, p):
    """Return the total variations of a joint law and of its first token's from i.i.d. rows p."""
    target = laws.target_law(p, law.ndim)
    first = [joint.reshape(len(p), -1).sum(1) for joint in (law, target)]
    return laws.total_variation(law, target), laws.total_variation(*first)


def _failed(audit):
    return {probe.name for probe in audit.failed_probes}


def test_the_right_sampler_passes():
    audit = laws.audit(token)
    assert (audit.verdict, audit.obstacle, audit.worst, audit.passed) == ("LOSSLESS", "", None, True)
    assert all(finding.total_variation == finding.first_token == 0 for finding in audit.findings)
    found = {finding.trial.name: finding.measured.accepted for finding in audit.findings}
    assert (found["one draft"], found["two drafts"], found["three drafts"]) == (F(2, 3), F(10, 9), F(38, 27))


def test_trials_keep_and_reject_and_have_rows_of_their_own():
    """An audit is worth its rows: q can draw what p can't give and the other way, and depths differ."""
    found = {finding.trial.name: finding.measured for finding in laws.audit(token).findings}
    assert {name for name, measured in found.items() if not measured.kept} == {"bonus alone", "disjoint supports"}
    assert {name for name, measured in found.items() if not measured.rejected} == {"bonus alone", "identical rows"}
    p, q = NAMES["rows of their own"].p, NAMES["rows of their own"].q
    rows = [[rows(prefix) for k in range(3) for prefix in itertools.product(range(3), repeat=k)] for rows in (p, q)]
    assert len({tuple(row) for row in rows[0]}) > 9
    assert any(0 in row for row in rows[0])
    assert any(0 in row for row in rows[1])


def test_reference():
    """The numbers of VECTORS.md: arg-max of residual and bonus."""
    for gamma, expected in ((0, F(7, 12)), (1, F(1, 12))):
        assert _total_variations(laws.sampler_law(samplers.reference, **SEP, gamma=gamma), SEP["p"])[1] == expected
    audit = laws.audit(samplers.reference)
    assert audit.verdict == "NOT LOSSLESS"
    assert (audit.worst.trial.name, audit.worst.total_variation) == ("bonus alone", F(7, 12))
    assert {"q(x) = 0 < p(x)", "u = 0, p(x) = 0", "empty residual"} < _failed(audit)


def _one_uniform(draft, q, p, uniforms):
    return token(draft, q, p, [*[uniforms[0]] * len(draft), uniforms[-1]])


@pytest.mark.parametrize(
    ("sampler", "joint", "first"),
    [
        (token, 0, 0),
        (verify_sampler("block"), 0, 0),
        (verify_sampler("match"), 0, 0),
        (verify_sampler(mistakes.get("block with the token residual").use), F(11, 576), 0),
        (_one_uniform, F(5, 36), 0),
        (verify_sampler(mistakes.get("resample from p").use), F(25, 144), F(5, 36)),
        (verify_sampler(mistakes.get("swapped ratio").use), F(899, 2304), F(1, 3)),
    ],
)
def test_sep(sampler, joint, first):
    assert _total_variations(laws.sampler_law(sampler, **SEP, gamma=2), SEP["p"]) == (joint, first)


RULES = [
    *rules.RULES.values(), rules.lenient(F(1, 2)), rules.ensemble(F(3, 4)),
    *(mistake.use for mistake in mistakes.CATALOGUE if isinstance(mistake.use, rules.Rule)),
]  # fmt: skip
RULES = [rule for rule in RULES if rule.name not in ("coupled", "epsilon floor")]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.label)
@pytest.mark.parametrize(("rows", "gamma", "steps"), [(SEP, 2, 1), (TOY, 1, 2), ("rows of their own", 2, 1)])
def test_what_verify_does_is_the_rules_law(rule, rows, gamma, steps):
    rows = {"p": NAMES[rows].p, "q": NAMES[rows].q} if isinstance(rows, str) else rows
    measured = laws.sampler_law(verify_sampler(rule), **rows, gamma=gamma, steps=steps)
    assert (measured == laws.joint_law(rule, **rows, gamma=gamma, steps=steps)).all()


@pytest.mark.parametrize("backend", ["numpy", "torch"])
@pytest.mark.parametrize("rule", ["token", "match", "block"])
def test_verify_is_lossless(rule, backend):
    """Triton's interpreter would take minutes for what its equality with NumPy shows."""
    few = [NAMES["one draft"], NAMES["rows of their own, two steps"], NAMES["small residual"]]
    audit = laws.audit(
        verify_sampler(rule, backend), trials=laws.TRIALS if backend == "numpy" else few, ratio=rule != "match"
    )
    assert audit.passed, audit


def test_coupled_draws_for_itself():
    few = [NAMES["one draft"], NAMES["rows of their own, two steps"]]
    audit = laws.audit(verify_sampler("coupled"), trials=few, samples=1000, ratio=False)
    assert audit.passed, audit


@pytest.mark.parametrize("fault", BOUNDARY_FAULTS, ids=lambda fault: fault.__name__)
def test_boundary_faults(fault):
    audit = laws.audit(fault)
    assert _failed(audit) == CAUGHT_BY[fault.__name__]
    assert audit.verdict == ("NOT LOSSLESS" if fault is samplers.epsilon_floor else "LOSSLESS")
    assert not audit.passed


def test_an_epsilon_floor_lets_impossible_tokens_out():
    """Far below `ROUNDING`, and still wrong: the target never emits them."""
    audit = laws.audit(samplers.epsilon_floor, trials=[NAMES["one-hot target"]])
    assert 0 < audit.worst.total_variation < 1e-8


@pytest.mark.slow
def test_transformers():
    """Its law is right. Its `<=` accepts p(x) = 0 at u = 0, its ratio takes q(x) = 0, its residual divides by 0."""
    few = [trial for trial in laws.TRIALS if trial.gamma < 3]
    audit = laws.audit(samplers.transformers_speculative_sampling(), trials=few)
    assert audit.verdict == "LOSSLESS"
    assert _failed(audit) == {"u = 0, p(x) = 0", "q(x) = 0 < p(x)", "empty residual", "empty residual, its law"}
    crash = next(probe for probe in audit.probes if probe.name == "empty residual")
    assert crash.got.startswith("RuntimeError: probability tensor contains either `inf`, `nan`")


def test_transformers_before_5_24(monkeypatch):
    judge = utils._speculative_sampling

    def older(ids, candidate_logits, length, logits, is_done_candidate, weight=None):
        assert is_done_candidate is False
        return judge(ids, candidate_logits, length, logits)

    monkeypatch.setattr(utils, "_speculative_sampling", older)
    law = laws.sampler_law(samplers.transformers_speculative_sampling(), **TOY, gamma=2)
    assert (law == laws.target_law(TOY["p"], 3)).all()


def test_transformers_leaves_torch_as_it_was():
    functions, state = (torch.rand_like, torch.multinomial), torch.get_rng_state()
    laws.sampler_law(samplers.transformers_speculative_sampling(), **TOY, gamma=1)
    assert (torch.rand_like, torch.multinomial) == functions
    assert torch.equal(torch.get_rng_state(), state)


def _first_row_only(draft, q, p, uniforms):
    return token(draft, np.repeat(q[:1], len(q), axis=0), p, uniforms)


def test_rows_of_their_own_show_what_equal_rows_hide():
    audit = laws.audit(_first_row_only)
    assert set(audit.trials("different")) == {"rows of their own"}


def _padded(draft, q, p, uniforms):
    tokens = token(draft, q, p, uniforms)
    return np.array(tokens + [-1] * (len(draft) + 1 - len(tokens)))


@pytest.mark.parametrize("sampler", [_padded, lambda *arrays: torch.tensor(token(*arrays))])
def test_tokens_may_be_padded_or_tensors(sampler):
    assert (laws.sampler_law(sampler, **SEP, gamma=1) == laws.target_law(SEP["p"], 2)).all()


def test_any_order_of_the_uniform_will_do():
    """Cut points that aren't expected are found: accepting by 1 − u, and drawing from the last id down."""

    def reversed_sampler(draft, q, p, uniforms):
        tokens = token(2 - draft, q[:, ::-1], p[:, ::-1], 1 - uniforms)
        return [2 - x for x in tokens]

    assert (laws.sampler_law(reversed_sampler, **SEP, gamma=2) == laws.target_law(SEP["p"], 3)).all()


def _ignores_drafts(draft, q, p, uniforms):
    return token(draft[:0], q[:0], p[:1], uniforms[:1])


def _mixes_uniforms(draft, q, p, uniforms):
    return token(draft, q, p, [*uniforms[:-1], (uniforms[0] + uniforms[-1]) % 1])


RNG = np.random.default_rng(0)


def _draws_for_itself(draft, q, p, uniforms):
    return token(draft, q, p, RNG.random(len(uniforms)))


def _one_draft_only(draft, q, p, uniforms):
    if len(draft) > 1:
        raise NotImplementedError("one draft at a time")
    return token(draft, q, p, uniforms)


def _in_float32(draft, q, p, uniforms):
    return token(draft, *(array.astype(np.float32) for array in (q, p, uniforms)))


@pytest.mark.parametrize(
    ("sampler", "kwargs", "reason"),
    [
        (_ignores_drafts, {}, "no draft was ever kept"),
        (token, {"trials": [NAMES["identical rows"]]}, "no draft was ever rejected"),
        (token, {"trials": []}, "no draft was ever kept or rejected"),
        (token, {"trials": [NAMES["bonus alone"]]}, "no draft was ever kept or rejected"),
        (_mixes_uniforms, {"trials": laws.TRIALS[:2]}, "isn't constant on boxes of the uniforms: one draft"),
        (_draws_for_itself, {"trials": laws.TRIALS[:2]}, "isn't constant on boxes of the uniforms"),
        (_one_draft_only, {}, "no call returned tokens: two drafts, three drafts, rows of their own, rows with zeros"),
        (_in_float32, {}, "no more than float32 rounds, which resolution=2"),
    ],
)
def test_inconclusive(sampler, kwargs, reason):
    audit = laws.audit(sampler, **kwargs)
    assert audit.verdict == "INCONCLUSIVE"
    assert reason in audit.obstacle
    assert not audit.passed


def test_float32_is_lossless_at_its_resolution():
    assert laws.audit(_in_float32, resolution=F(1, 2**18)).verdict == "LOSSLESS"


def _raises_at_times(draft, q, p, uniforms):
    if uniforms[-1] < 0.01:
        raise KeyError("out of luck")
    return token(draft, q, p, uniforms)


def _returns_odd_things(draft, q, p, uniforms):
    tokens = token(draft, q, p, uniforms)
    return {0: [3], 1: [0.5], 2: []}[tokens[-1]] if uniforms[-1] < 0.5 else tokens


def test_what_came_instead_of_tokens_is_named():
    audit = laws.audit(_raises_at_times, trials=[NAMES["one draft"]])
    assert audit.verdict == "NOT LOSSLESS"
    assert audit.worst.total_variation == F(1, 100)
    (fault,) = audit.faults
    assert fault.what == "KeyError: 'out of luck'"
    assert (fault.q, fault.p[0]) == ([[2 / 12, 9 / 12, 1 / 12]], [3 / 12, 5 / 12, 4 / 12])
    assert token(*map(np.array, (fault.draft, fault.q, fault.p, fault.uniforms)))
    assert fault.what in repr(audit)
    assert {fault.what for fault in laws.audit(_returns_odd_things, trials=[NAMES["bonus alone"]]).faults} == {
        "returned [3]", "returned float64 [1]",
    }  # fmt: skip


def test_a_batch_that_raises_is_asked_one_by_one():
    class Odd:
        def __call__(self, draft, q, p, uniforms):
            return _raises_at_times(draft, q, p, uniforms)

        def batch(self, *arrays):
            raise KeyError("somewhere")

    audit = laws.audit(Odd(), trials=[NAMES["one draft"]])
    assert [fault.what for fault in audit.faults] == ["KeyError: 'out of luck'"]
    assert audit.sampler == "Odd"


def test_changed_inputs_are_found():
    def sorts(draft, q, p, uniforms):
        tokens = token(draft, q, p, uniforms)
        p.sort()
        return tokens

    audit = laws.audit(sorts)
    assert (audit.verdict, _failed(audit)) == ("LOSSLESS", {"inputs after a call"})


def test_nan_is_never_a_token():
    def arg_max_of_nan(draft, q, p, uniforms):
        return [int(p[0].argmax())] if np.isnan(p).any() else token(draft, q, p, uniforms)

    assert _failed(laws.audit(arg_max_of_nan)) == {"p(1) = NaN"}


def _with_own_uniforms(seed):
    rng = np.random.default_rng(seed)
    return lambda draft, q, p: token(draft, q, p, rng.random(len(draft) + 1))


def test_a_sampler_that_draws_for_itself_is_counted():
    audit = laws.audit(_with_own_uniforms(0), samples=2000)
    assert audit.passed, audit
    assert sum(probe.passed is None for probe in audit.probes) == 6
    assert all(finding.test.detectable is None or finding.test.detectable < 0.11 for finding in audit.findings)


def test_reseeded_steps_are_caught_by_counting():
    def reseeded(draft, q, p):
        return _with_own_uniforms(len(draft))(draft, q, p)

    audit = laws.audit(reseeded, trials=[NAMES["two steps"]], samples=1000)
    assert (audit.verdict, audit.worst.test.p_value) == ("NOT LOSSLESS", 0)


def test_counting_finds_what_it_says_it_would():
    """Resampling from p is off by 25/144, more than 2,000 runs can detect with probability 0.99."""
    rng, wrong = np.random.default_rng(0), verify_sampler(mistakes.get("resample from p").use)

    def sampler(draft, q, p):
        return wrong(draft, q, p, rng.random(3))

    audit = laws.audit(sampler, trials=[NAMES["two drafts"]], samples=1000)
    assert audit.worst.test.detectable < 25 / 144
    assert audit.worst.test.p_value < gtests.LEVEL


def test_faults_of_counted_samplers():
    rng = np.random.default_rng(0)

    def raises(draft, q, p):
        return _raises_at_times(draft, q, p, rng.random(2))

    audit = laws.audit(raises, trials=[NAMES["one draft"]], samples=1000)
    assert audit.verdict == "NOT LOSSLESS"
    assert [(fault.what, fault.uniforms) for fault in audit.faults] == [("KeyError: 'out of luck'", None)]


def test_g_test_is_the_harness_of_the_other_tests():
    rng = np.random.default_rng(0)
    law = rng.dirichlet(np.full(20, 0.3))
    counts = rng.multinomial(3000, law)
    found = gtests.g_test(counts / 3000, law, 3000, goodness.LEVEL)
    assert math.isclose(found.p_value, goodness.g_test(counts, law), rel_tol=1e-9)
    assert math.isclose(found.detectable, goodness.detectable(3000, found.cells), rel_tol=1e-9)
    assert gtests.g_test(np.array([0.5, 0.5]), np.array([1.0, 0.0]), 100, 1e-4) == (0, 1e-4, 1, None)
    assert gtests.g_test(np.array([1.0, 0.0]), np.array([1.0, 0.0]), 100, 1e-4).p_value == 1


def test_simplest_fractions():
    fractions = sorted({F(a, b) for b in range(1, 12) for a in range(b + 1)})
    for low, high in itertools.combinations_with_replacement(fractions, 2):
        inside = [fraction for fraction in fractions if low <= fraction <= high]
        assert cells.simplest(low, high) == min(inside, key=lambda fraction: (fraction.denominator, fraction))


@pytest.mark.parametrize("cuts", [[], [F(1, 3)], [F(1, 4), F(1, 2), F(3, 4)]])
def test_volumes_of_steps_nobody_told_of(cuts):
    steps = np.array([0.1, 0.35, 0.36, 0.8])

    def decide(points):
        return [(int((steps <= u).sum()), v < 0.3) for u, v in points]

    widths = [F(10, 100), F(25, 100), F(1, 100), F(44, 100), F(20, 100)]
    expected = {(k, True): width * F(3, 10) for k, width in enumerate(widths)}
    expected |= {(k, False): width * F(7, 10) for k, width in enumerate(widths)}
    assert cells.volumes(decide, [cuts, []]) == expected


def test_a_change_is_taken_to_lie_at_a_known_place():
    """1/2 + 2^-20 is no simple fraction, and another axis knows it."""
    place = F(1, 2) + F(1, 2**20)
    found = cells.volumes(lambda points: [u < float(place) for u, _ in points], [[], [place]])
    assert found == {True: place, False: 1 - place}
    assert cells.volumes(lambda points: [u < 0.3 + v / 9 for u, v in points], [[], []])[None] > 0


def test_reports_are_the_same_each_time_and_need_no_style_sheet():
    first, again = (laws.audit(samplers.reference) for _ in range(2))
    assert repr(first) == repr(again)
    assert first._repr_html_() == again._repr_html_()
    assert repr(first).startswith("NOT LOSSLESS: reference; boundary probes failed: 6 of 14\n")
    worst = "worst: bonus alone, total variation 7/12, of the first token 7/12; "
    assert worst + "gamma = 0, q = (2, 9, 1)/12, p = (3, 5, 4)/12" in repr(first)
    assert "background-color" in first._repr_html_()
    assert not any(word in first._repr_html_() for word in ("<style", "class=", "var(--", "0x"))


def test_reports_escape_and_say_what_is_counted():
    sampler = _with_own_uniforms(0)
    sampler.__name__ = "<b>mine</b>"
    audit = laws.audit(sampler, trials=[NAMES["rows of their own, two steps"]], samples=500)
    assert "&lt;b&gt;mine&lt;/b&gt;" in audit._repr_html_()
    assert "G-tests of 500 runs per trial, of level 0.0001 in all and power 0.99" in repr(audit)
    assert "detectable" in repr(audit)


def test_every_probe_names_a_right_answer():
    """Each probe passes for the right sampler, and fails for one that always emits a token twice."""
    assert {probe.name for probe in laws.audit(lambda draft, q, p, uniforms: [2] * (len(draft) + 1)).failed_probes} >= {
        probe.name for probe in probes.PROBES if probe.name != "p(1) = NaN"
    }


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: laws.audit(lambda draft, p: [0]), r"<lambda> takes \['draft', 'p'\]; expected \(draft, q, p"),
        (lambda: laws.audit(lambda *arrays: [0]), r"<lambda> takes \[\]; expected .*pass injectable=True"),
        (lambda: laws.audit(max), "max has no signature; pass injectable=True"),
        (lambda: laws.audit(token, resolution=0), "resolution is 0; expected a number between 0 and 1"),
        (lambda: laws.audit(token, samples=0), "samples is 0; expected an integer >= 1"),
        (lambda: laws.sampler_law(token, p=[1.0], q=[1.0], gamma=1), "p and q are floats; expected Fractions"),
        (lambda: laws.sampler_law(token, **TOY, gamma=-1), "gamma is -1; expected an integer >= 0"),
        (lambda: laws.sampler_law(token, **TOY, gamma=1, steps=0), "steps is 0; expected an integer >= 1"),
    ],
)
def test_errors_say_what_came(call, sentence):
    with pytest.raises(SpecnbError, match=sentence):
        call()


def test_injectable_may_be_said():
    class Opaque:
        __signature__ = "none"

        def __call__(self, *arrays):
            return token(*arrays)

    with pytest.raises(SpecnbError, match="Opaque has no signature"):
        calls.takes_uniforms(Opaque())
    assert laws.audit(Opaque(), injectable=True, trials=laws.TRIALS[:2]).passed


@pytest.mark.parametrize(("low", "high"), [(0.3, 0.45), (0.62, 0.71)])
def test_an_interval_inside_a_cell_is_seen(low, high):
    half = [F(1, 2), F(1, 2)]
    law = laws.sampler_law(lambda draft, q, p, u: [int(low < u[0] < high)], p=half, q=half, gamma=0)
    assert abs(law[1] - F(high) + F(low)) < 2**-28


def _without_rare_tokens(draft, q, p, uniforms):
    kept = np.where(p < 0.01, 0, p)
    return samplers.token(draft, q, kept / kept.sum(-1, keepdims=True), uniforms)


def _of_the_top_4(draft, q, p, uniforms):
    kept = np.where(p >= np.sort(p, -1)[:, -min(4, p.shape[1]), None], p, 0)
    return samplers.token(draft, q, kept / kept.sum(-1, keepdims=True), uniforms)


@pytest.mark.parametrize("sampler", [_without_rare_tokens, _of_the_top_4])
def test_rare_tokens_matter(sampler):
    assert laws.audit(sampler).worst.trial.name == "rare tokens"
