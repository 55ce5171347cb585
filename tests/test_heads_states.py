"""The states that heads continue are those of their own run, and what the model's logits come from."""

from __future__ import annotations

import functools
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from tiny_models import SHAPE, randomised, tiny
from transformers import (
    CohereConfig,
    CohereForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    GraniteConfig,
    GraniteForCausalLM,
)

import specnb
from specnb import SpecnbError
from specnb.drafters import HeadsDrafter, SequentialHead

DRAFTER = HeadsDrafter(randomised(SequentialHead(16, 24), seed=7))


def decoded(target, prompts, seed=0):
    """Return the tokens and the drafts of a run."""
    run = specnb.generate(target, DRAFTER, prompts, max_new_tokens=16, gamma=3, seed=seed, eos_token_id=None)
    return [run.tokens(row) for row in range(len(prompts))], [tuple(round_.draft) for round_ in run.rounds]


def here(call):
    return call()


def in_another_thread(call):
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call).result()


@pytest.mark.parametrize("where", [here, in_another_thread], ids=lambda where: where.__name__)
@pytest.mark.parametrize("kind", ["llama", "gpt2"])
@pytest.mark.parametrize("whole", [True, False], ids=["behind the base model", "within it"])
def test_a_run_inside_the_forward_of_another_leaves_it_its_states(whole, kind, where):
    target, outer, inner = tiny(kind), [[1, 2, 3], [4]], [[5, 6], [7, 8], [9]]
    expected, other = decoded(target, outer), decoded(target, inner, seed=1)
    found = []

    for forward in range(1, 4):
        left = [forward]

        def at_that_forward(*_, left=left):
            left[0] -= 1
            if not left[0]:
                found.append(where(lambda: decoded(target, inner, seed=1)))

        hook = (target if whole else target.base_model).register_forward_hook(at_that_forward)
        assert decoded(target, outer) == expected
        hook.remove()
    assert found == [other] * 3


def test_threads_give_the_numbers_of_one_thread():
    target = tiny()
    function = functools.partial(one_run, target)
    grid = {"requests": [1, 3], "seed": range(20)}
    alone = specnb.sweep(function, grid, progress=False)
    with ThreadPoolExecutor(4) as pool:
        together = specnb.sweep(function, grid, executor=pool, progress=False)
    assert together.equals(alone)


def one_run(target, requests, seed):
    return str(decoded(target, [[1, 2, 3], [4], [5, 6]][:requests], seed))


SCALED = {
    "Granite": (GraniteConfig, GraniteForCausalLM, {"logits_scaling": 8.0}),
    "Cohere": (CohereConfig, CohereForCausalLM, {"logit_scale": 0.0625}),
    "Gemma2": (Gemma2Config, Gemma2ForCausalLM, {"final_logit_softcapping": 2.0, "head_dim": 4}),
}
UNSCALED = {"logits_scaling": 1.0, "logit_scale": 1.0, "final_logit_softcapping": None}


def scaled(name, **changes):
    """Return a tiny model that scales its logits, or with `UNSCALED` values doesn't."""
    config_class, model_class, own = SCALED[name]
    own = own | {key: changes.get(key, value) for key, value in own.items()}
    config = config_class(vocab_size=12, **SHAPE | {"num_key_value_heads": 4} | own)
    config._attn_implementation = "eager"
    return randomised(model_class(config))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", SCALED)
def test_a_target_that_scales_its_logits_is_refused(name, dtype):
    with pytest.raises(SpecnbError, match=f"the logits of {name}ForCausalLM aren't its LM head's of the last state"):
        decoded(scaled(name).to(dtype), [[1, 2, 3], [4]])
    tokens, drafts = decoded(scaled(name, **UNSCALED).to(dtype), [[1, 2, 3], [4]])
    assert len(tokens[0]) == 16
    assert any(drafts)
