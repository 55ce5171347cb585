"""Runs that are interrupted, fail or have nothing to do: what they say, and that models are left as they were."""

from __future__ import annotations

import pytest
import torch
from tiny_models import ScriptedDrafter, tiny

import specnb
from specnb import SpecnbError
from specnb.decoding.support import check_model
from specnb.drafters import ModelDrafter

PROMPTS = [[3], [5, 2], [1, 2, 3, 4, 5], list(range(12))]


@pytest.fixture(scope="module")
def pair():
    return tiny(), tiny(seed=1)


def test_an_interrupt_keeps_what_was_emitted(pair):
    options = {"max_new_tokens": 20, "gamma": 3, "seed": 1}
    whole = specnb.generate(pair[0], ScriptedDrafter([1, 2], 12), PROMPTS[:2], **options)
    run = specnb.generate(pair[0], ScriptedDrafter([1, 2], 12, interrupt_at=4), PROMPTS[:2], **options)
    assert run.interrupted
    assert not whole.interrupted
    assert run.stats.emitted.tolist() == [8, 12]
    for row in range(2):
        assert run.tokens(row) == whole.tokens(row)[: run.stats.emitted[row]]
    assert "interrupted" in repr(run)


def test_rows_that_are_no_distribution_raise_with_request_and_position(pair):
    target, calls = tiny(), []

    def spoil(module, inputs, output):
        calls.append(1)
        if len(calls) == 3:
            output.logits[1] = float("nan")

    check_model("target", target, 30)
    hook = target.register_forward_hook(spoil)
    with pytest.raises(SpecnbError, match=r"request 1, position 7: .*NONFINITE.*expected finite logits"):
        specnb.generate(target, ScriptedDrafter([0, 0], 12), [[1], [1, 2, 3, 4, 5]], max_new_tokens=9, gamma=2, seed=0)
    hook.remove()


def test_a_draft_without_mass_raises_with_request_and_position(pair):
    draft = tiny(seed=1)
    check_model("draft", draft, 30)
    with torch.no_grad():
        draft.lm_head.weight[:] = float("nan")
    with pytest.raises(SpecnbError, match=r"request 0, position 2: the draft's row has nothing to draw"):
        specnb.generate(pair[0], ModelDrafter(draft), [[1, 2]], max_new_tokens=9, gamma=2, seed=0)


def state_of(model):
    weights = {name: weight.clone() for name, weight in model.state_dict().items()}
    config, generation = model.config.to_dict(), model.generation_config.to_dict()
    return weights, config, generation, sorted(model.__dict__), model.training, model.config._attn_implementation


@pytest.mark.parametrize("failing", [False, True])
def test_models_and_configs_are_left_as_they_were(failing):
    target, draft = tiny(), tiny(seed=1)
    before = [state_of(model) for model in (target, draft)]
    drafter = ScriptedDrafter([1], 12, interrupt_at=2, exception=RuntimeError("in the middle")) if failing else None
    if failing:
        with pytest.raises(RuntimeError, match="in the middle"):
            specnb.generate(target, drafter, [[1, 2]], max_new_tokens=9, gamma=2, seed=0)
    else:
        specnb.generate(target, ModelDrafter(draft), [[1, 2]], max_new_tokens=9, gamma=2, seed=0)
    for model, (weights, *rest) in zip((target, draft), before, strict=True):
        after, *rest_after = state_of(model)
        assert rest == rest_after
        assert all(torch.equal(after[name], weight) for name, weight in weights.items())


def test_the_bar_is_off_by_default_and_counts_tokens(pair, capsys):
    specnb.generate(pair[0], None, [[1, 2]], max_new_tokens=5, seed=0)
    assert capsys.readouterr() == ("", "")
    specnb.generate(pair[0], None, [[1, 2]], max_new_tokens=5, seed=0, progress=True)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "5/5" in captured.err


def test_an_empty_batch_and_an_empty_budget_are_fine(pair):
    run = specnb.generate(
        pair[0], ModelDrafter(pair[1]), torch.zeros(0, 3, dtype=torch.int64), max_new_tokens=5, seed=0
    )
    assert run.sequences.shape == (0, 0)
    run = specnb.generate(pair[0], ModelDrafter(pair[1]), [[1, 2]], max_new_tokens=0, seed=0)
    assert run.sequences.tolist() == [[1, 2]]
