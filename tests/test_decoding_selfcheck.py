"""The check that a model's cached logits are its own: it catches what drops masks or positions in every dtype."""

from __future__ import annotations

import pytest
import torch
from tiny_models import tiny
from transformers import LlamaForCausalLM

from specnb import SpecnbError
from specnb.decoding.cache import cache_name
from specnb.decoding.support import check_model

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
SEEDS = 4


class Sneaky(LlamaForCausalLM):
    """A model whose forward names the mask and the positions, but uses only those in `honoured`."""

    honoured = ()

    def forward(self, input_ids=None, attention_mask=None, position_ids=None, past_key_values=None, **rest):
        """Pass on what is honoured."""
        if past_key_values is not None:
            rest[cache_name(LlamaForCausalLM)] = past_key_values
        given = {"attention_mask": attention_mask, "position_ids": position_ids}
        return super().forward(input_ids=input_ids, **rest | {name: given[name] for name in self.honoured})


class Forgetful(Sneaky):
    """A model that numbers the tokens of each call from 0, whatever position ids it is given."""

    honoured = ("attention_mask", "position_ids")

    def forward(self, input_ids=None, position_ids=None, attention_mask=None, past_key_values=None, **rest):
        """Replace the positions."""
        counted = torch.arange(input_ids.shape[1])[None]
        return super().forward(input_ids, attention_mask, counted, past_key_values, **rest)


def disguised(kind, honoured, dtype, **options):
    model = tiny(**options).to(dtype)
    model.__class__, model.honoured = kind, honoured
    return model


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("honoured", [(), ("attention_mask",), ("position_ids",), "all but the start"], ids=str)
def test_a_model_that_drops_masks_or_positions_is_refused(honoured, attention, dtype):
    kind, honoured = (Forgetful, Forgetful.honoured) if isinstance(honoured, str) else (Sneaky, honoured)
    for seed in range(SEEDS):
        model = disguised(kind, honoured, dtype, attention=attention, seed=seed)
        with pytest.raises(SpecnbError, match=r"after a rollback its cached logits are .* away from uncached ones"):
            check_model("target", model, 20)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("kind", ["llama", "qwen2", "mistral", "gpt2", "window", "hybrid"])
def test_an_honest_model_passes_in_every_dtype(kind, attention, dtype):
    for seed in range(SEEDS):
        check_model("target", tiny(kind, seed=seed, attention=attention).to(dtype), 20)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_an_honest_model_passes_where_context_hardly_matters(dtype):
    model = tiny()
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.mul_(1e-4)
    check_model("target", model.to(dtype), 20)


def test_the_check_of_a_model_runs_once(monkeypatch):
    model, calls = tiny(), []
    model.register_forward_hook(lambda *_: calls.append(1))
    check_model("target", model, 20)
    assert len(calls) == 3
    check_model("target", model, 30)
    assert len(calls) == 3
    check_model("target", model.bfloat16(), 30)
    assert len(calls) == 6
