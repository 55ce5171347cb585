"""Sliding windows and hybrid layers, in every dtype: what is decoded is what `generate` decodes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from goodness import LEVEL, cells, enumerated_law, g_test
from tiny_models import ScriptedDrafter, tiny, uncached

import specnb
from specnb import Sampling
from specnb.decoding import cache
from specnb.drafters import EarlyExitDrafter, ModelDrafter, NGramDrafter, PromptLookupDrafter

GREEDY = Sampling(temperature=0)
PROMPTS = [np.random.default_rng(n).integers(0, 12, n).tolist() for n in (1, 2, 5, 12)]
TEXT = np.random.default_rng(0).integers(0, 12, 200).tolist()
NEW = 14


def generated(model, prompts, tokens=NEW):
    """Return what transformers emits for each prompt."""
    runs = []
    for prompt in prompts:
        ids = torch.tensor([prompt])
        run = model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=tokens, pad_token_id=0
        )
        runs.append(run[0, len(prompt) :].tolist())
    return runs


def drafters(kind):
    return [
        ModelDrafter(tiny(kind, seed=1)), ModelDrafter(tiny(kind)), PromptLookupDrafter(),
        NGramDrafter.train(TEXT, order=2), EarlyExitDrafter(1),
    ]  # fmt: skip


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("kind", ["llama", "window", "hybrid", "qwen2"])
def test_greedy_equals_generate_for_every_drafter_and_gamma(kind, attention):
    target = tiny(kind, attention=attention)
    expected = generated(target, PROMPTS)
    for drafter in [None, *drafters(kind)]:
        for gamma in (0,) if drafter is None else (1, 3, 7) if attention == "sdpa" else (3,):
            run = specnb.generate(target, drafter, PROMPTS, max_new_tokens=NEW, gamma=gamma, sampling=GREEDY, seed=0)
            assert [run.tokens(row) for row in range(4)] == expected
    alone = [
        specnb.generate(target, drafter, [prompt], max_new_tokens=NEW, gamma=3, sampling=GREEDY, seed=0).tokens()
        for prompt in PROMPTS
    ]
    assert alone == expected


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("kind", ["window", "hybrid"])
def test_a_window_crossed_while_everything_is_rejected_equals_generate(kind, attention):
    target = tiny(kind, attention=attention)
    prompts = [np.random.default_rng(n).integers(0, 12, n).tolist() for n in (5, 7, 8, 9, 30)]
    expected = generated(target, prompts, 12)
    for gamma in range(1, 8) if attention == "sdpa" else (1, 7):
        drafter = ScriptedDrafter([0] * 5, 12)
        run = specnb.generate(target, drafter, prompts, max_new_tokens=12, gamma=gamma, sampling=GREEDY, seed=0)
        assert [run.tokens(row) for row in range(5)] == expected
        assert run.stats.accepted.sum() == 0


@pytest.mark.parametrize("kind", ["window", "hybrid"])
def test_coupled_equals_plain_decoding_across_the_window(kind):
    target = tiny(kind)
    options = {"max_new_tokens": 30, "rule": "coupled", "gamma": 4, "seed": 3}
    plain = specnb.generate(target, None, PROMPTS, **options)
    for drafter in drafters(kind):
        assert specnb.generate(target, drafter, PROMPTS, **options).sequences.tolist() == plain.sequences.tolist()


def p_value(kind, V=4, rows=8_000, length=3):
    target, prompt = tiny(kind, vocabulary=V), [3, 1, 2, 1, 0, 3, 2, 2, 1, 3]
    law = enumerated_law(target, prompt, length, specnb.probabilities)
    run = specnb.generate(
        target, ModelDrafter(tiny(kind, vocabulary=V, seed=1)), [prompt] * rows, seed=np.arange(rows),
        max_new_tokens=length, gamma=2, eos_token_id=None,
    )  # fmt: skip
    return g_test(cells(run.sequences[:, len(prompt) :].numpy(), V), law)


@pytest.mark.parametrize("kind", ["window", "hybrid"])
def test_the_law_is_the_targets_beyond_the_window(kind):
    assert p_value(kind) > LEVEL


@pytest.mark.parametrize("kind", ["window", "hybrid"])
def test_a_mask_without_its_window_is_caught(kind, monkeypatch):
    visible = cache.visible_slots
    monkeypatch.setattr(cache, "visible_slots", lambda slots, positions, window: visible(slots, positions, None))
    assert p_value(kind) < LEVEL


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("kind", ["llama", "window", "hybrid", "qwen2"])
def test_bfloat16_differs_from_generate_only_at_close_calls_which_are_reported(kind, attention):
    target = tiny(kind, attention=attention).bfloat16()
    expected, reported = generated(target, PROMPTS), 0
    for drafter in (ModelDrafter(tiny(kind, seed=1).bfloat16()), PromptLookupDrafter(), EarlyExitDrafter(1)):
        run = specnb.generate(target, drafter, PROMPTS, max_new_tokens=NEW, gamma=3, sampling=GREEDY, seed=0)
        reported += len(run.stats.close_calls)
        for row, prompt in enumerate(PROMPTS):
            pairs = zip(expected[row], run.tokens(row), strict=True)
            first = next((k for k, (theirs, ours) in enumerate(pairs) if theirs != ours), None)
            assert first is None or (row, len(prompt) + first) in run.stats.close_calls
    assert reported < 0.4 * 3 * 4 * NEW
    assert specnb.generate(target, None, PROMPTS, max_new_tokens=4, seed=0).stats.close_calls == []


def test_a_close_call_is_two_largest_logits_within_the_rounding_of_bfloat16():
    target = tiny("llama").bfloat16()
    run = specnb.generate(target, None, PROMPTS, max_new_tokens=NEW, sampling=GREEDY, seed=0)
    for row, prompt in enumerate(PROMPTS):
        logits = uncached(target, run.sequences[row, : len(prompt) + NEW - 1])[len(prompt) - 1 :].float()
        first, second = logits.topk(2).values.T
        margin = ((first - second) / first.abs() / torch.finfo(torch.bfloat16).eps).tolist()
        for k, units in enumerate(margin):
            if not 8 < units < 32:  # plain and cached sums differ a little
                assert ((row, len(prompt) + k) in run.stats.close_calls) == (units <= 16)
    assert run.stats.close_calls
    assert specnb.generate(tiny(), None, PROMPTS, max_new_tokens=NEW, sampling=GREEDY, seed=0).stats.close_calls == []
