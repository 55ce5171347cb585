"""Exact laws: the fractions of the literature, losslessness, and that NumPy's verdicts integrate to them."""

from __future__ import annotations

import collections
import itertools
from fractions import Fraction as F

import numpy as np
import pytest
import torch

import specnb
from specnb import laws, rules
from specnb.backends import numpy as reference
from specnb.errors import SpecnbError
from specnb.verdict import Status

TOY = {"p": [F(1, 3), F(2, 3)], "q": [F(2, 3), F(1, 3)]}
SEP = {"p": [F(3, 12), F(5, 12), F(4, 12)], "q": [F(2, 12), F(9, 12), F(1, 12)]}
V3A = {"p": [F(5, 10), F(3, 10), F(2, 10)], "q": [F(2, 10), F(3, 10), F(5, 10)]}

# Sums of at most 49 float64 products, each rounded once: a few units of 2^-53, never more than this.
ROUNDING = 1e-15
# The same over joint laws of up to 4^4 paths, whose masses are products of up to eight numbers.
JOINT_ROUNDING = 1e-14

BLOCK_BY_ITS_LAW = rules.Rule("block by its law", rules.block, "Sun et al. 2024", lossless=True)

# A power of two: such rows are exact in float64, so that exact laws and verdicts see the same numbers.
DENOMINATOR = 16


@pytest.mark.parametrize(("gamma", "expected"), [(1, F(2, 3)), (2, F(10, 9)), (3, F(38, 27))])
def test_toy_expected_accepted(gamma, expected):
    assert laws.expected_accepted("token", **TOY, gamma=gamma) == expected


def test_toy_law_of_n():
    assert laws.accepted_law("token", **TOY, gamma=2).tolist() == [F(1, 3), F(2, 9), F(4, 9)]


@pytest.mark.parametrize(("rule", "accepted"), [("token", F(10, 9)), ("match", F(10945, 20736))])
def test_sep(rule, accepted):
    assert laws.expected_accepted(rule, **SEP, gamma=2) == accepted
    joint = laws.joint_law(rule, **SEP, gamma=2)
    assert laws.total_variation(joint, laws.target_law(SEP["p"], 3)) == 0


def _resample_from_p(draft, q, p, xp):
    lengths, _ = rules.token(draft, q, p, xp)
    return lengths, rules.normalised(p, xp)


def _swapped_ratio(draft, q, p, xp):
    accept = rules.acceptance(xp.at(p[..., : draft.shape[-1], :], draft), xp.at(q, draft), xp)
    return rules.draft_by_draft(accept, rules.token(draft, q, p, xp)[1][..., :-1, :], p, xp)


@pytest.mark.parametrize(
    ("law", "accepted", "joint_tv", "first_tv"),
    [
        (_resample_from_p, F(10, 9), F(25, 144), F(5, 36)),
        (_swapped_ratio, F(34417, 20736), F(899, 2304), F(1, 3)),
    ],
)
def test_own_rules_on_sep(law, accepted, joint_tv, first_tv):
    rule = rules.Rule("mine", law, "this test", lossless=False)
    joint, target = laws.joint_law(rule, **SEP, gamma=2), laws.target_law(SEP["p"], 3)
    assert laws.expected_accepted(rule, **SEP, gamma=2) == accepted
    assert laws.total_variation(joint, target) == joint_tv
    assert laws.total_variation(joint.sum(axis=(1, 2)), target.sum(axis=(1, 2))) == first_tv


def test_emitted_law_exactly():
    law, alpha = laws.emitted_law(**V3A)
    assert law.tolist() == V3A["p"]
    assert alpha == 1 - laws.total_variation(**V3A) == F(7, 10)


@pytest.mark.parametrize("p", [[0.2, 0.8], [1.0, 0.0], [F(1, 3), F(2, 3)]])
def test_identical_rows_accept_everything(p):
    law, alpha = laws.emitted_law(p=p, q=p)
    assert alpha == 1
    assert law.tolist() == p


def test_drafts_declared_as_what_they_are_not():
    """Drawn from the top 2 of q but declared as q: the bound TV(out, p) <= TV(r, q) is tight here."""
    p, q, r = [F(5, 10), F(3, 10), F(2, 10)], [F(4, 10), F(4, 10), F(2, 10)], [F(1, 2), F(1, 2), F(0)]
    assert _first_token(r, q, p) == [F(5, 8), F(3, 8), 0]
    law, kept = laws.emitted_law(p=p, q=q, drawn=r)
    assert law.tolist() == [F(5, 8), F(3, 8), 0]
    assert kept == F(7, 8)


def test_arg_max_draft():
    p, q, top = [F(2, 10), F(3, 10), F(5, 10)], [F(5, 10), F(3, 10), F(2, 10)], [F(1), F(0), F(0)]
    assert _first_token(top, q, p) == [F(2, 5), 0, F(3, 5)]
    assert laws.emitted_law(p=p, q=q, drawn=top)[0].tolist() == [F(2, 5), 0, F(3, 5)]
    assert _first_token(top, top, p) == p


@pytest.mark.parametrize("kind", [F, float])
def test_a_draft_that_q_says_is_impossible_is_rejected(kind):
    p, q, drawn = ([kind(x) for x in row] for row in ([0.25, 0.75], [0, 1], [1, 0]))
    law, kept = laws.emitted_law(p=p, q=q, drawn=drawn)
    assert law.tolist() == [1, 0] == _first_token(np.array(drawn), q, p)
    assert kept == 0


def _first_token(drawn, declared, p):
    """Return the law of the first token when the draft is drawn from one row and declared as another."""
    V = len(p)
    lengths, correction = laws.law([[x] for x in range(V)], [[declared]] * V, [[p, p]] * V)
    return [drawn[v] * lengths[v, 1] + sum(drawn * lengths[:, 0] * correction[:, 0, v]) for v in range(V)]


def test_random_pairs_emit_p():
    rng = np.random.default_rng(0)
    worst = 0.0
    for _ in range(10_000):
        V = rng.integers(2, 50)
        p, q = rng.dirichlet(np.full(V, 0.5), 2)
        law, alpha = laws.emitted_law(p=p, q=q)
        worst = max(worst, np.abs(law - p).max(), abs(alpha - 1 + laws.total_variation(p, q)))
    assert worst < ROUNDING


def _random_row(rng, V, kind):
    if kind == "one-hot":
        counts = DENOMINATOR * np.eye(V, dtype=int)[rng.integers(V)]
    else:
        counts = rng.multinomial(DENOMINATOR, rng.dirichlet(np.full(V, 0.7)))
    return [F(int(count), DENOMINATOR) for count in counts]


def _contextual(V, gamma, kind, seed=0):
    """Return p and q, rows of their own after every prefix, as functions of the prefix."""
    rng = np.random.default_rng(seed)
    prefixes = [prefix for k in range(gamma + 1) for prefix in itertools.product(range(V), repeat=k)]
    p = {prefix: _random_row(rng, V, kind) for prefix in prefixes}
    q = {prefix: _random_row(rng, V, kind) for prefix in prefixes}
    if kind == "same":
        q = p
    return p.__getitem__, q.__getitem__


SHAPES = [(2, 0), (1, 2), (2, 1), (2, 3), (3, 2), (4, 2), (3, 3), (4, 3)]
KINDS = ["random", "same", "one-hot"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("V", "gamma"), SHAPES)
@pytest.mark.parametrize("rule", ["token", "match", "block", "coupled"])
def test_lossless_with_rows_that_depend_on_the_prefix(rule, V, gamma, kind):
    p, q = _contextual(V, gamma, kind)
    joint, target = laws.joint_law(rule, p=p, q=q, gamma=gamma), laws.target_law(p, gamma + 1)
    assert (joint == target).all()
    floats = laws.joint_law(rule, p=_in_floats(p), q=_in_floats(q), gamma=gamma)
    assert np.abs(floats - target.astype(float)).max() < JOINT_ROUNDING


def _in_floats(rows):
    return lambda prefix: [float(x) for x in rows(prefix)]


def test_two_steps_compose():
    p, q = _contextual(2, 3, "random")
    joint = laws.joint_law("token", p=p, q=q, gamma=1, steps=2)
    assert joint.shape == (2,) * 4
    assert (joint == laws.target_law(p, 4)).all()
    wrong = rules.Rule("mine", _resample_from_p, "this test", lossless=False)
    one, two = (laws.joint_law(wrong, **SEP, gamma=1, steps=steps) for steps in (1, 2))
    first, both = laws.target_law(SEP["p"], 2), laws.target_law(SEP["p"], 4)
    assert 0 < laws.total_variation(one, first) < laws.total_variation(two, both)


def _numpy_verdicts(draft, q, p, uniforms, **kwargs):
    verdict = specnb.verify(draft, q, p, uniforms=uniforms, backend="numpy", **kwargs)
    assert not (verdict.status & ~(Status.IMPOSSIBLE | Status.OUT_OF_RANGE)).any()
    return verdict.tokens, verdict.num_accepted


def _integrate(verify, draft, q, p, law, **kwargs):
    """Return the exact law of (n, token) of a verifier, Fractions [G+1, V], by one midpoint per cell.

    The unit cube of uniforms is cut wherever the law's own acceptances and cumulative corrections lie (and at
    1/3, so that a cut is never all there is): inside a cell a right verifier can't change its answer.
    """
    lengths, correction = law
    G, V = len(draft), correction.shape[1]
    cuts = [{F(0), F(1, 3), F(1)} for _ in range(G + 1)]
    beyond, before = lengths[::-1].cumsum()[::-1], lengths.cumsum()  # P(n >= i) and P(n <= i)
    for i in range(G):  # where draft i is rejected by a rule that stops there, and by one that looks further
        cuts[i] |= {F(beyond[i + 1], beyond[i])} if beyond[i] else set()
        cuts[i] |= {F(lengths[i + 1], before[i + 1])} if before[i + 1] else set()
    for n in range(G + 1):
        cuts[G] |= set(correction[n].cumsum())
    cells = [list(itertools.pairwise(sorted(cut))) for cut in cuts]
    boxes = list(itertools.product(*cells))
    middles = np.array([[float((low + high) / 2) for low, high in box] for box in boxes])
    B = len(boxes)
    per_row = {name: np.repeat(value, B) for name, value in kwargs.items() if name in ("lengths", "onehot")}
    rows = [None if a is None else np.repeat(np.array(a, float)[None], B, axis=0) for a in (q, p)]
    tokens, n = verify(np.repeat([draft], B, axis=0), *rows, middles, **{**kwargs, **per_row})
    mass = np.full((G + 1, V), F(0))
    for box, row, count in zip(boxes, tokens, n, strict=True):
        mass[count, row[count]] += np.prod([high - low for low, high in box])
    return mass


def _paths(p, q, V, gamma):
    for draft in itertools.product(range(V), repeat=gamma):
        yield (
            np.array(draft, int), np.array([q(draft[:i]) for i in range(gamma)]).reshape(gamma, V),
            np.array([p(draft[:i]) for i in range(gamma + 1)]),
        )  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("V", "gamma"), SHAPES)
@pytest.mark.parametrize(
    "rule", ["token", "match", "block", rules.lenient(F(1, 2)), rules.ensemble(F(3, 4)), BLOCK_BY_ITS_LAW], ids=str
)
def test_numpy_verdicts_integrate_to_the_law(rule, V, gamma, kind):
    """Every drafted path, also those of probability 0, after which every (n, token) has its exact measure."""
    for draft, q, p in _paths(*_contextual(V, gamma, kind), V, gamma):
        law = laws.law(draft, q, p, rule=rule)
        measured = _integrate(_numpy_verdicts, draft, q, p, law, rule=rule)
        assert (measured == law[0][:, None] * law[1]).all()


@pytest.mark.parametrize("rule", ["token", "block", BLOCK_BY_ITS_LAW], ids=str)
@pytest.mark.parametrize("kwargs", [{"lengths": 1}, {"lengths": 0}, {"onehot": True}, {"onehot": False}])
@pytest.mark.parametrize("ids", [[0, 2], [1, -1], [-1, 0], [0, 3], [2, 4]], ids=str)
def test_ragged_one_hot_and_padded_rows_integrate_too(ids, kwargs, rule):
    """Ids outside the vocabulary are rejected and flagged, which is no part of the law."""
    rng = np.random.default_rng(1)
    q = np.array([_random_row(rng, 3, "random") for _ in range(2)])
    p = np.array([_random_row(rng, 4, "random") for _ in range(3)])
    law = laws.law(ids, q, p, rule=rule, **kwargs)
    measured = _integrate(_numpy_verdicts, np.array(ids), q, p, law, rule=rule, **kwargs)
    assert (measured == law[0][:, None] * law[1]).all()


def test_coupled_verdicts_integrate_to_the_law(monkeypatch):
    """Drafts and verdicts are decided by the same words: one midpoint per cell between all rows' cumulative masses."""
    V, gamma = 3, 2
    p, q = _contextual(V, gamma, "random")
    prefixes = [list(itertools.product(range(V), repeat=k)) for k in range(gamma + 1)]
    cuts = [{F(0), F(1)}.union(*(np.cumsum(rows(x)) for x in level for rows in (p, q))) for level in prefixes]
    boxes = list(itertools.product(*(itertools.pairwise(sorted(cut)) for cut in cuts)))
    table = np.array([[int((low + high) / 2 * 2**64) for low, high in box] for box in boxes], np.uint64)
    monkeypatch.setattr(reference, "words", lambda seed, position, counters, B: table[:, position : position + 1])
    draft = np.empty((len(boxes), 0), int)
    for i in range(gamma):
        rows = np.array([q(tuple(x)) for x in draft.tolist()], float)
        draft = np.column_stack([draft, reference.draw(rows, 0, i, 0, reference.OWN)])
    rows = np.array([[p(tuple(x[:i])) for i in range(gamma + 1)] for x in draft.tolist()], float)
    tokens, n, _ = reference.verify_coupled(draft, None, rows, None, None, 0, 0, None)
    measured = collections.Counter()
    for box, x, emitted, count in zip(boxes, draft.tolist(), tokens.tolist(), n.tolist(), strict=True):
        measured[(*x, count, emitted[count])] += np.prod([high - low for low, high in box])
    for x, q_rows, p_rows in _paths(p, q, V, gamma):
        lengths, correction = laws.law(x, q_rows, p_rows, rule="coupled")
        drawn = np.prod([q_rows[i, x[i]] for i in range(gamma)])
        for at, law in np.ndenumerate(drawn * lengths[:, None] * correction):
            assert measured[(*x.tolist(), *at)] == law


def _corrected_from_p(draft, q, p, uniforms):
    _, n = _numpy_verdicts(draft, q, p, uniforms)
    return specnb.verify(draft, q, p, uniforms=uniforms, lengths=n, backend="numpy").tokens, n


def _one_uniform(draft, q, p, uniforms):
    return _numpy_verdicts(draft, q, p, np.repeat(uniforms[:, :1], uniforms.shape[1], axis=1))


def _thresholded_on_p(draft, q, p, uniforms):
    return _numpy_verdicts(draft, q, p, uniforms, rule="match")


def _rows_off_by_one(draft, q, p, uniforms):
    return _numpy_verdicts(draft, np.roll(q, 1, axis=1), p, uniforms)


@pytest.mark.parametrize("verify", [_corrected_from_p, _one_uniform, _thresholded_on_p, _rows_off_by_one])
def test_integration_catches_a_wrong_verifier(verify):
    p, q = _contextual(3, 2, "random")
    wrong = [
        (_integrate(verify, *path, laws.law(*path)) != law[0][:, None] * law[1]).any()
        for path in _paths(p, q, 3, 2)
        for law in [laws.law(*path)]
    ]
    assert any(wrong)


def test_law_keeps_the_framework_and_the_batch():
    draft, q, p = [[0], [1]], torch.tensor([[[0.5, 0.5]]] * 2), torch.tensor([[[0.25, 0.75], [0.5, 0.5]]] * 2)
    lengths, correction = laws.law(torch.tensor(draft), q, p)
    assert (lengths.dtype, correction.shape) == (torch.float64, (2, 2, 2))
    assert lengths.tolist() == [[0.5, 0.5], [0.0, 1.0]]
    assert laws.law(draft[0], q[0], p[0])[1].shape == (2, 2)
    assert specnb.law is laws.law


def test_integers_are_exact_beside_fractions_and_floats_beside_floats():
    half, quarters, one_hot = [F(1, 2), F(1, 2)], [F(1, 4), F(3, 4)], [1, 0]
    exactly = [F(1), F(0)]
    for kind in (list, np.array, lambda ids: torch.tensor(ids)):
        ids = kind(one_hot)
        assert laws.emitted_law(p=half, q=half, drawn=ids)[0].tolist() == exactly
        assert laws.emitted_law(p=quarters, q=ids)[0].tolist() == quarters
        assert laws.total_variation(ids, half) == F(1, 2)
        for law in (laws.joint_law, laws.accepted_law):
            assert law("token", p=quarters, q=ids, gamma=2).tolist() == law(
                "token", p=quarters, q=exactly, gamma=2).tolist()  # fmt: skip
            assert law("token", p=[0.25, 0.75], q=ids, gamma=1).dtype == np.float64
        lengths, correction = laws.law([0], [ids], [quarters, half])
        assert (lengths.tolist(), correction[1].tolist()) == ([F(3, 4), F(1, 4)], half)
    assert laws.target_law(lambda prefix: half if prefix else one_hot, 2)[0].tolist() == half
    assert laws.joint_law("token", p=lambda prefix: half if prefix else one_hot, q=half, gamma=1)[0].tolist() == half
    assert {law.dtype for law in laws.law([0], [one_hot], [[0, 1], one_hot])} == {np.dtype(np.float64)}
    assert laws.emitted_law(p=one_hot, q=[0, 1])[0].dtype == laws.target_law(one_hot, 2).dtype == np.float64
    with pytest.raises(SpecnbError, match=r"p sums to 1[.]84"):
        laws.emitted_law(p=np.array([2**63, 2**63, 1], np.uint64), q=[1, 0, 0])  # 1 in 64 bits


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: rules.get("tokens"), "rule 'tokens' is unknown; expected one of token, match"),
        (lambda: laws.law([0], [[0.5, 0.5]], [[0.5, 0.5]]), r"p has shape \(1, 1, 2\); expected \(1, 2, V\)"),
        (
            lambda: laws.law([0], [[1.0], [1.0]], [[1.0], [1.0]]),
            r"q has shape \(1, 2, 1\); expected \(1, 1, V\)",
        ),
        (lambda: laws.law([0.5], [[1.0]], [[1.0]] * 2), r"draft is float64 \[1\]; expected integers"),
        (lambda: laws.law([0], [[1.0]], [[1.0]] * 2, lengths=2), r"lengths\[0\] is 2; expected 0 <= lengths <= 1"),
        (lambda: laws.emitted_law(p=[0.5, 0.5], q=[1.0]), "p has rows of 2 entries and q of 1"),
        (lambda: laws.emitted_law(p=[F(1)], q=[1.0]), "mix floats and Fractions"),
        (lambda: laws.emitted_law(p=[1.0, 0.0], q=[1.0, 0.0], drawn=[1.0]), "drawn has rows of 1 entries and q of 2"),
        (lambda: laws.emitted_law(p=[1.0, 0.0], q=[1.0, 0.0], drawn=[0.5, 0.4]), "drawn sums to 0.9"),
        (lambda: laws.emitted_law(p=[0.5, -0.5], q=[1.0, 0.0]), r"entry \(1,\) of p is -0.5"),
        (lambda: laws.emitted_law(p=[0.5, np.nan], q=[1.0, 0.0]), r"entry \(1,\) of p is nan"),
        (lambda: laws.total_variation([1.0], [0.5, 0.5]), "can't be compared"),
        (lambda: laws.joint_law("token", p=[0.5, 0.5], q=[1.0], gamma=1), "expected one vocabulary"),
        (lambda: laws.accepted_law("token", p=[0.5, 0.5], q=[1.0], gamma=1), "expected one vocabulary"),
        (lambda: laws.joint_law("token", p=[F(1)], q=[1.0], gamma=1), "mix floats and Fractions"),
        (lambda: laws.emitted_law(p=[1.0], q=[1.0], drawn=[F(1)]), "drawn and q mix floats and Fractions"),
        (lambda: laws.emitted_law(p=[[0.5, 0.5]] * 2, q=[[0.5, 0.5]] * 2), r"p has shape \(2, 2\); expected one row"),
        (lambda: laws.target_law([[0.5, 0.5]], 1), r"p has shape \(1, 2\); expected one row"),
        (lambda: laws.law([0], [["a"]], [[1.0]] * 2), "q is <U1 .*expected finite numbers"),
        (lambda: laws.law([0], [[1.0]], None), "p is object .*expected finite numbers"),
        (lambda: laws.law([0], None, [["0.5", "0.5"]] * 2), "p is <U3 .*expected finite numbers"),
        (lambda: laws.law(None, None, [[1.0]] * 2), r"draft is object \[\]; expected"),
        (lambda: laws.law("a", None, [[1.0]] * 2), r"draft is <U1 \[\]; expected"),
        (lambda: laws.law(0, None, [[1.0]] * 2), r"draft is int64 \[\]; expected ids \[G\] or \[B, G\]"),
        (lambda: laws.law([[0], [0, 0]], None, [[1.0]] * 2), "draft is no array .*expected rows of one length"),
        (lambda: laws.law([0], None, [[1.0], [0.5, 0.5]]), "p is no array .*expected rows of one length"),
        (lambda: laws.emitted_law(p=[F(1), np.inf], q=[1.0, 0.0]), "p is object .*expected finite numbers"),
    ],
)
def test_errors_say_what_came(call, sentence):
    with pytest.raises(SpecnbError, match=sentence):
        call()


PAIR = {"p": [0.5, 0.5], "q": [0.5, 0.5]}


@pytest.mark.parametrize(
    "call",
    [
        lambda **rows: laws.joint_law("token", **rows, gamma=1),
        lambda **rows: laws.accepted_law("token", **rows, gamma=1),
        lambda **rows: laws.expected_accepted("token", **rows, gamma=1),
        laws.emitted_law,
        lambda p, q: (laws.target_law(p, 2), laws.target_law(q, 2)),
    ],
    ids=["joint", "accepted", "expected", "emitted", "target"],
)
def test_rows_that_are_no_law_are_named(call):
    call(**PAIR)
    half = [F(1, 2), F(1, 2)]
    with pytest.raises(SpecnbError, match=r"[pq] sums to 0.75; expected 1 within 0.0001"):
        call(p=PAIR["p"], q=[0.5, 0.25])
    with pytest.raises(SpecnbError, match=r"p sums to 3/4; expected exactly 1"):
        call(p=[F(1, 2), F(1, 4)], q=half)
    with pytest.raises(SpecnbError, match=r"sums to 1000000001/1000000000; expected exactly 1"):
        call(p=half, q=[F(1, 2), F(1, 2) + F(1, 10**9)])


def test_float32_rows_are_laws():
    """Of the logits tried, these give the float32 softmax whose float64 sum is furthest from 1."""
    row = (5 * torch.randn(8, 262144, generator=torch.Generator().manual_seed(0))).softmax(-1)
    off = abs(row.double().sum(-1) - 1)
    assert 1e-6 < off.max() < laws.MASS_TOLERANCE
    laws.emitted_law(p=row[off.argmax()], q=row[0])


def test_a_wrong_row_is_named_by_its_prefix():
    rows = {(): [0.5, 0.5], (0,): [1.0, 0.0], (1,): [0.5, 0.75]}
    with pytest.raises(SpecnbError, match=r"p after the prefix \(1,\) sums to 1.25"):
        laws.target_law(rows.__getitem__, 2)
    rows |= {(0,): [1.0], (1,): [1.0]}
    with pytest.raises(SpecnbError, match=r"p has rows \(2, 1\) after 1 tokens; expected \(2, 2\)"):
        laws.target_law(rows.__getitem__, 2)
    rows |= {(0,): [1.0], (1,): [0.5, 0.5]}
    with pytest.raises(SpecnbError, match="p is no array"):
        laws.target_law(rows.__getitem__, 2)


@pytest.mark.parametrize("gamma", [-1, 1.5, True, None, "1"])
def test_gamma_is_a_count(gamma):
    for law in (laws.joint_law, laws.accepted_law, laws.expected_accepted):
        with pytest.raises(SpecnbError, match=r"gamma is .*; expected an integer >= 0"):
            law("token", **PAIR, gamma=gamma)


@pytest.mark.parametrize("count", [0, -1, 1.5, True])
def test_steps_and_tokens_are_counts(count):
    with pytest.raises(SpecnbError, match=r"steps is .*; expected an integer >= 1"):
        laws.joint_law("token", **PAIR, gamma=1, steps=count)
    with pytest.raises(SpecnbError, match=r"tokens is .*; expected an integer >= 1"):
        laws.target_law(PAIR["p"], count)
    assert laws.target_law(PAIR["p"], np.int64(1)).tolist() == PAIR["p"]


@pytest.mark.parametrize("onehot", [[True], [True] * 3, [1, 0], [[True], [False]], ["a", "b"], [[], [True]]])
@pytest.mark.parametrize("q", [None, [[[0.5, 0.5]]] * 2], ids=["q is None", "soft"])
def test_onehot_is_one_bool_per_request(onehot, q):
    with pytest.raises(SpecnbError, match="onehot is"):
        laws.law([[0], [1]], q, [[[0.5, 0.5]] * 2] * 2, onehot=onehot)


def test_onehot_declares_single_requests():
    p = [[[0.25, 0.75]] * 2] * 2
    lengths, _ = laws.law([[0], [0]], [[[0.5, 0.5]]] * 2, p, onehot=[True, False])
    assert lengths[:, 1].tolist() == [0.25, 0.5]
