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
