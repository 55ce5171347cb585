"""Decoded tokens follow the target's enumerated law, and are those that the contract's words decide."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from goodness import LEVEL, cells, detectable, enumerated_law, g_test
from tiny_models import tiny, uncached

import specnb
from specnb import Sampling
from specnb.backends import numpy as reference
from specnb.decoding.cache import CachedModel
from specnb.drafters import ModelDrafter

ROWS, LENGTH, V = 20_000, 3, 5
PROMPT = [3, 1, 4, 1]
DETECTABLE = 0.05
"""Total variation that the G-tests of this file catch with 99 % at a level of 1e-4; see `goodness.detectable`."""

FORWARD_NOISE = 2e-6
"""TV between q of a one-token and p of a five-token forward of the same float32 model: 3e-7 was seen on average.
With draft == target each draft is rejected with that chance, which a few hundred drafts never show."""


def decoded(target, drafter, sampling=None, batch=4_000, **options):
    """Return ROWS continuations of one prompt [ROWS, LENGTH], decoded in batches with their own seeds."""
    options |= {"max_new_tokens": LENGTH, "gamma": 2, "sampling": sampling, "eos_token_id": None}
    runs = [
        specnb.generate(target, drafter, [PROMPT] * batch, seed=np.arange(start, start + batch), **options)
        for start in range(0, ROWS, batch)
    ]
    return torch.cat([run.sequences[:, len(PROMPT) :] for run in runs]).numpy()


def p_value(target, drafter, sampling=None, **options):
    law = enumerated_law(target, PROMPT, LENGTH, lambda logits: specnb.probabilities(logits, sampling or Sampling()))
    return g_test(cells(decoded(target, drafter, sampling, **options), V), law)


def test_the_test_is_as_powerful_as_it_says():
    assert detectable(ROWS, V**LENGTH) < DETECTABLE


@pytest.mark.parametrize(("vocabulary", "rule"), [
    (5, "token"), (5, "match"), (5, "block"), (5, "coupled"), (3, "token"), (7, "token"), (7, "block")])  # fmt: skip
def test_the_law_is_the_targets_whatever_the_drafts_vocabulary(vocabulary, rule):
    assert p_value(tiny(vocabulary=V), ModelDrafter(tiny(vocabulary=vocabulary, seed=1)), rule=rule) > LEVEL


def test_the_law_is_that_of_the_processed_target_when_the_draft_samples_otherwise():
    drafter = ModelDrafter(tiny(vocabulary=V, seed=1), Sampling(temperature=1.5, top_k=3))
    assert p_value(tiny(vocabulary=V), drafter, Sampling(temperature=0.7, top_p=0.9)) > LEVEL


def test_a_mask_that_shows_one_slot_too_many_is_caught(monkeypatch):
    """The mutant lets each token see the one behind it: a draft that it should judge, or one that was rejected."""
    mask = CachedModel._mask
    monkeypatch.setattr(CachedModel, "_mask", lambda self, positions: mask(self, positions + 1))
    monkeypatch.setattr("specnb.decoding.support.self_check", lambda model: "")  # which catches it, too
    assert p_value(tiny(vocabulary=V), ModelDrafter(tiny(vocabulary=V, seed=1))) < LEVEL


@pytest.mark.parametrize("temperature", [0.3, 0.5, 0.7, 1.0, 1.5])
@pytest.mark.parametrize("top_p", [None, 0.6, 0.9])
def test_a_draft_that_is_the_target_is_always_accepted(temperature, top_p):
    model = tiny(vocabulary=40)
    run = specnb.generate(
        model, ModelDrafter(model), [[1, 2, 3], [7] * 6], max_new_tokens=60, gamma=4,
        sampling=Sampling(temperature, top_p=top_p), seed=5, record=True,
    )  # fmt: skip
    assert run.stats.accepted.sum() == run.stats.drafted.sum() > 80
    assert run.stats.expected_acceptance.min() > 1 - FORWARD_NOISE


def replayed(run, target, draft, round_, seed):
    """Return the tokens of a round from uncached forwards and the NumPy backend alone."""
    ids = torch.cat([run.sequences[round_.row, : round_.position], torch.tensor(round_.draft, dtype=torch.int64)])
    p, q = (specnb.probabilities(uncached(m, ids)[round_.position - 1 :].numpy()) for m in (target, draft))
    drafts = [
        int(reference.draw(q[i : i + 1], np.array([seed]), np.array([round_.position]), i)[0])
        for i in range(len(round_.draft))
    ]
    verdict = specnb.verify(
        drafts, q[: len(drafts)], p, seed=np.array([seed]), position=round_.position, backend="numpy"
    )
    return tuple(drafts), tuple(verdict.tokens[verdict.tokens >= 0].tolist())


@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_each_round_is_the_verdict_of_the_contract_on_its_rows(backend):
    target, draft = tiny(vocabulary=20), tiny(vocabulary=20, seed=1)
    seeds = [11, 2**62 + 5, 0]
    run = specnb.generate(
        target, ModelDrafter(draft), [[1, 2, 3], [7] * 6, [4]], max_new_tokens=12, gamma=3, seed=seeds, backend=backend
    )
    assert len(run.rounds) > 10
    for round_ in run.rounds:
        assert replayed(run, target, draft, round_, seeds[round_.row]) == (round_.draft, round_.tokens)


def test_plain_decoding_draws_each_token_by_the_word_of_its_position():
    model = tiny(vocabulary=20)
    run = specnb.generate(model, None, [[1, 2, 3]], max_new_tokens=8, seed=9)
    for position in range(3, 11):
        p = specnb.probabilities(uncached(model, run.sequences[0, :position])[-1:].numpy())
        token = reference.draw(p, 9, np.array([position]), 0, purpose=reference.OWN)
        assert run.sequences[0, position] == token[0]


def test_overlap_recorded_is_one_minus_the_total_variation_of_the_rows():
    target, draft = tiny(vocabulary=20), tiny(vocabulary=20, seed=1)
    run = specnb.generate(target, ModelDrafter(draft), [[1, 2, 3]], max_new_tokens=9, gamma=3, seed=4, record=True)
    expected = np.zeros(3)
    for round_ in run.rounds:
        ids = torch.cat([run.sequences[0, : round_.position], torch.tensor(round_.draft, dtype=torch.int64)])
        p, q = (uncached(m, ids)[round_.position - 1 :].softmax(-1).double() for m in (target, draft))
        for i in range(min(len(round_.draft), round_.accepted + 1)):
            expected[i] += float(torch.minimum(p[i], q[i]).sum())
    np.testing.assert_allclose(run.stats.overlap_at[0], expected, atol=1e-5)  # float32 softmax on both sides
