"""Rules known by their law alone: torch returns NumPy's tokens, counts and status for arrays and for tensors."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
import regimes
import torch

import specnb
from specnb import backends, mistakes, rules
from specnb.backends import numpy as reference
from specnb.backends import torch_words
from specnb.errors import SpecnbError

EVERY_REGIME = pytest.mark.parametrize("regime", regimes.ALL, ids=lambda r: r.__name__)


def test_signatures_match():
    ours, theirs = (inspect.signature(module.verify_by_law) for module in (reference, backends.load("torch")))
    assert ours == theirs


LAWS = [rules.get("token"), rules.get("match"), rules.get("block"), rules.lenient(0.5), rules.lenient(0.5, "p - lq"),
        rules.ensemble(0.75), *(m.use for m in mistakes.CATALOGUE if isinstance(m.use, rules.Rule))]  # fmt: skip
LOSSY = [rules.lenient(0.5), rules.lenient(0.5, "p - lq"), rules.ensemble(0.75)]


@EVERY_REGIME
@pytest.mark.parametrize("rule", LAWS, ids=lambda rule: rule.label)
def test_numpy_and_torch_agree_by_law(rule, regime):
    cases = regimes.batches(regime, (1, 3, 129))
    assert regimes.disagreements(reference, backends.load("torch"), cases, "verify_by_law", law=rule.law) == []


@EVERY_REGIME
def test_torch_agrees_by_law_on_the_path_of_a_device(regime, monkeypatch):
    monkeypatch.setattr(torch_words, "on_cpu", lambda device: False)
    cases, law = regimes.batches(regime, (1, 129)), rules.lenient(0.5).law
    assert regimes.disagreements(reference, backends.load("torch"), cases, "verify_by_law", law=law) == []


@EVERY_REGIME
@pytest.mark.parametrize("rule", LOSSY, ids=lambda rule: rule.label)
def test_lossy_verdicts_of_arrays_and_tensors_are_the_same(rule, regime):
    for b in regimes.batches(regime, (3, 257)):
        ours, theirs = (specnb.verify(**inputs, rule=rule) for inputs in (b, regimes.tensors(b)))
        assert (ours.backend, theirs.backend) == ("numpy", "torch")
        for name in ("tokens", "num_accepted", "status"):
            assert getattr(ours, name).tolist() == getattr(theirs, name).tolist()


def test_typical_acceptance_on_tensors():
    """Its threshold, 0.09·exp(−H) = 0.0575 for the second row, takes a logarithm: no identity of bits is claimed."""
    p = torch.tensor([[0.5, 0.5, 0.0], [0.88, 0.07, 0.05], [0.0, 1.0, 0.0]], dtype=torch.float64)
    accepted = [int(specnb.verify([0, x], p[:2], p, seed=1, rule=rules.typical()).num_accepted) for x in (0, 1, 2)]
    assert accepted == [2, 2, 1]


@pytest.mark.parametrize("name", ["numpy", "torch"])
def test_a_law_of_the_wrong_shape_is_refused(name):
    b = regimes.near(np.random.default_rng(0), 5)
    wrong = rules.Rule("wrong", lambda draft, q, p, xp: (xp.ones(p), p), "this test", lossless=False)
    with pytest.raises(specnb.SpecnbError, match=r"a rule's law returned shape \(4, 1\); expected \(4, 5\)"):
        specnb.verify(**b, rule=wrong, backend=name)


def _always(draft, q, p, xp):
    return rules.draft_by_draft(xp.where(xp.at(q, draft) + 1, 1.0, 1.0), p[..., : draft.shape[-1], :], p, xp)


@pytest.mark.parametrize("framework", [np.asarray, torch.tensor])
@pytest.mark.parametrize("draft", [[7], [-2], [2]])
def test_no_rule_keeps_an_impossible_draft(framework, draft):
    rows = framework([[0.5, 0.5, 0.0]]), framework([[0.5, 0.3, 0.2], [0.1, 0.8, 0.1]])
    verdict = specnb.verify(draft, *rows, seed=0, rule=rules.Rule("all", _always, "this test", lossless=False))
    assert verdict.num_accepted == 0
    assert int(verdict.status) in (specnb.Status.OUT_OF_RANGE, specnb.Status.IMPOSSIBLE)


@pytest.mark.parametrize("framework", [np.asarray, torch.tensor])
@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (lambda lengths, correction: (2 * lengths, correction), "row 0: lengths of a rule's law sums to 2"),
        (lambda lengths, correction: (lengths * np.nan, correction), "row 0: lengths of a rule's law sums to nan"),
        (lambda lengths, correction: (lengths, correction / 2), "row 0: correction of a rule's law sums to 0.5"),
        (lambda lengths, correction: None, "a rule's law returned NoneType; expected two arrays"),
    ],
)
def test_a_law_that_is_none_is_refused(framework, wrong, sentence):
    def law(draft, q, p, xp):
        return wrong(*rules.token(draft, q, p, xp))

    rows = framework([[0.5, 0.5]]), framework([[0.25, 0.75]] * 2)
    with pytest.raises(SpecnbError, match=sentence):
        specnb.verify([0], *rows, seed=0, rule=rules.Rule("mine", law, "this test", lossless=False))
