"""Rule `coupled`: speculative decoding equals plain decoding token for token, at any temperature."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tiny_models import tiny

import specnb
from specnb import Sampling
from specnb.decoding.choosing import Chooser
from specnb.drafters import ModelDrafter

PROMPTS = [[1, 2, 3], [7] * 6, [4], [5, 9, 5, 9, 11]]


def near(model, seed, distance):
    """Return a model with that one's weights, each moved by a normal deviate of that size."""
    draft = tiny(vocabulary=model.config.vocab_size)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for ours, theirs in zip(draft.parameters(), model.parameters(), strict=True):
            ours.copy_(theirs + distance * torch.randn(theirs.shape, generator=generator))
    return draft


def both_ways(drafter, **options):
    """Return plain and speculative decodings of the same requests."""
    target = tiny(vocabulary=12)
    return [
        specnb.generate(target, d, PROMPTS, **{"max_new_tokens": 40, "gamma": 4, "rule": "coupled"} | options)
        for d in (None, drafter)
    ]


@pytest.mark.parametrize("seed", [3, [5, 2**62, 0, 77]], ids=["one seed", "a seed each"])
@pytest.mark.parametrize("temperature", [0.3, 1.0, 1.7])
@pytest.mark.parametrize("draft", ["good", "terrible"])
def test_equals_plain_decoding(draft, temperature, seed):
    sampling = Sampling(temperature, top_p=0.9)
    model = near(tiny(vocabulary=12), 1, 0.01) if draft == "good" else tiny(vocabulary=12, seed=1)
    plain, coupled = both_ways(ModelDrafter(model), sampling=sampling, seed=seed, eos_token_id=None)
    assert coupled.sequences.tolist() == plain.sequences.tolist()
    accepted = coupled.stats.accepted.sum() / coupled.stats.drafted.sum()
    assert accepted > 0.5 if draft == "good" else 0 < accepted < 0.2


def test_equals_plain_decoding_with_an_end_anywhere_in_a_block():
    plain, coupled = both_ways(ModelDrafter(tiny(vocabulary=12, seed=1)), seed=range(4), eos_token_id=[3, 8])
    assert coupled.sequences.tolist() == plain.sequences.tolist()
    assert len(set(coupled.lengths.tolist())) > 2


def test_a_draft_that_is_the_target_is_always_accepted():
    _, coupled = both_ways(ModelDrafter(tiny(vocabulary=12)), seed=3, eos_token_id=None)
    assert coupled.stats.accepted.sum() == coupled.stats.drafted.sum() > 100


def test_a_gamma_more_or_less_changes_nothing():
    drafter = ModelDrafter(near(tiny(vocabulary=12), 1, 0.05))
    runs = [both_ways(drafter, seed=3, gamma=gamma)[1].sequences.tolist() for gamma in (0, 1, 7)]
    assert runs[0] == runs[1] == runs[2]


def test_a_draft_drawn_by_another_word_is_hardly_accepted(monkeypatch):
    """The law stays, so only the acceptance tells."""
    drafter = ModelDrafter(tiny(vocabulary=12))
    own = both_ways(drafter, seed=3)[1].stats
    monkeypatch.setattr(Chooser, "draw", lambda self, probs, position, index: self.module.draw(
        probs, self.live_seed, position, index))  # fmt: skip
    others = both_ways(drafter, seed=3)[1].stats
    assert own.accepted.sum() / own.drafted.sum() > 2 * others.accepted.sum() / others.drafted.sum()


def test_overlap_is_the_chance_that_a_coupled_draft_is_accepted():
    drafter = ModelDrafter(tiny(vocabulary=12, seed=1))
    run = specnb.generate(
        tiny(vocabulary=12), drafter, [[1, 2, 3]] * 400, max_new_tokens=3, gamma=1, rule="coupled",
        seed=np.arange(400), record=True, eos_token_id=None,
    )  # fmt: skip
    reached = run.stats.reached[:, 0].sum()
    assert abs(run.stats.acceptance[0] - run.stats.expected_acceptance[0]) < 4 / np.sqrt(4 * reached)
