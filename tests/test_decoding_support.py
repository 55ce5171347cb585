"""What can't be decoded is refused by name, with the reason, before the first token."""

from __future__ import annotations

import pytest
import torch
from tiny_models import SHAPE, ScriptedDrafter, tiny
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)

import specnb
from specnb import SpecnbError
from specnb.decoding.cache import cache_name
from specnb.decoding.support import check_model
from specnb.drafters import ModelDrafter


def mamba():
    return MambaForCausalLM(MambaConfig(vocab_size=12, hidden_size=16, num_hidden_layers=1, state_size=4)).eval()


def encoder_decoder():
    config = T5Config(vocab_size=12, d_model=16, d_ff=16, num_layers=1, num_heads=2, d_kv=8)
    return T5ForConditionalGeneration(config).eval()


def hybrid():
    config = Gemma3TextConfig(
        **SHAPE | {"num_key_value_heads": 2}, head_dim=4, vocab_size=12, sliding_window=8,
        layer_types=["sliding_attention", "full_attention"],
    )  # fmt: skip
    return Gemma3ForCausalLM(config).eval()


def flash():
    model = tiny()
    model.config._attn_implementation = "flash_attention_2"
    return model


def short():
    return tiny("gpt2", max_position_embeddings=12)


def windowed():
    return tiny("mistral", sliding_window=8)


def training():
    return tiny().train()


class Forgetful(LlamaForCausalLM):
    """A model that numbers the tokens of each call from 0, whatever position ids it is given."""

    def forward(self, input_ids=None, attention_mask=None, position_ids=None, past_key_values=None, **rest):
        """Pass everything on but the positions."""
        if past_key_values is not None:
            rest[cache_name(LlamaForCausalLM)] = past_key_values
        counted = torch.arange(input_ids.shape[1])[None]
        return super().forward(input_ids=input_ids, attention_mask=attention_mask, position_ids=counted, **rest)


def forgetful():
    model = tiny()
    model.__class__ = Forgetful
    return model


REFUSED = {
    "MambaForCausalLM can't be decoded here: its recurrent state can't roll back": mamba,
    "T5ForConditionalGeneration can't be decoded here: it is an encoder-decoder": encoder_decoder,
    r"Gemma3ForCausalLM can't be decoded here: it has sliding-window layers \(window 8\)": hybrid,
    r"MistralForCausalLM .*: it has sliding-window layers \(window 8\) and this run may reach 13": windowed,
    "'flash_attention_2', which takes no 4-D mask; load it with attn_implementation='sdpa'": flash,
    "it is in training mode, where dropout is active; call .eval": training,
    "it knows 12 positions and this run may reach 13; lower max_new_tokens": short,
    "after a rollback its cached logits are .* away from uncached ones": forgetful,
    "int can't be decoded here: it is no transformers model": int,
}


@pytest.mark.parametrize(("reason", "make"), REFUSED.items(), ids=[make.__name__ for make in REFUSED.values()])
def test_a_model_is_refused_by_name_as_target_and_as_draft(reason, make):
    model = make()
    with pytest.raises(SpecnbError, match=f"target .*{reason}"):
        specnb.generate(model, None, [[1, 2, 3]], max_new_tokens=10, seed=0)
    with pytest.raises(SpecnbError, match=f"draft .*{reason}"):
        specnb.generate(tiny(), ModelDrafter(model), [[1, 2, 3]], max_new_tokens=10, seed=0)


def test_a_window_that_the_run_never_fills_is_full_attention():
    model = tiny("mistral", sliding_window=8)
    run = specnb.generate(model, None, [[1, 2, 3]], max_new_tokens=5, sampling=specnb.Sampling(0), seed=0)
    expected = model.generate(torch.tensor([[1, 2, 3]]), do_sample=False, max_new_tokens=5, pad_token_id=0)
    assert run.sequences.tolist() == expected.tolist()


def test_the_check_of_a_model_runs_once(monkeypatch):
    model, calls = tiny(), []
    model.register_forward_hook(lambda *_: calls.append(1))
    check_model("target", model, 20)
    assert len(calls) == 3
    check_model("target", model, 30)
    assert len(calls) == 3


BAD_CALLS = {
    r"max_new_tokens is -1; expected an integer >= 0": {"max_new_tokens": -1},
    r"max_new_tokens is True; expected an integer": {"max_new_tokens": True},
    r"gamma is 1.5; expected an integer": {"gamma": 1.5},
    r"rule 'tokn' is unknown": {"rule": "tokn"},
    r"seed is -1; expected 0 <= seed": {"seed": -1},
    r"seed is int64 \[2\]; expected one integer, or one per request: \[1\]": {"seed": [1, 2]},
    r"backend 'jax' is unknown": {"backend": "jax"},
    r"eos_token_id is 'eos'; expected an id": {"eos_token_id": "eos"},
    r"prompt 0 has id 12 at position 1; expected 0 … 11, the target's vocabulary": {"input_ids": [[3, 12]]},
    r"prompt 1 has id -1 at position 0": {"input_ids": [[3], [-1]], "seed": 0},
    r"prompt 1 has shape \[0\]; expected at least one id": {"input_ids": [[3], []]},
    r"prompt 0 holds float32; expected integer ids": {"input_ids": torch.ones(1, 2)},
    r"input_ids have shape \[1, 1, 2\]; expected \[B, L\]": {"input_ids": torch.ones(1, 1, 2, dtype=torch.int64)},
    r"attention_mask of row 0 has a hole": {
        "input_ids": torch.ones(1, 4, dtype=torch.int64),
        "attention_mask": torch.tensor([[1, 0, 1, 1]]),
    },
    r"attention_mask has shape \[1, 2\]; expected \[1, 4\]": {
        "input_ids": torch.ones(1, 4, dtype=torch.int64),
        "attention_mask": torch.ones(1, 2),
    },
    r"prompt 0 has shape \[0\]": {
        "input_ids": torch.ones(1, 4, dtype=torch.int64),
        "attention_mask": torch.zeros(1, 4),
    },
    r"attention_mask came with a list of prompts": {"input_ids": [[1]], "attention_mask": [[1]]},
}


@pytest.mark.parametrize(("message", "changes"), BAD_CALLS.items(), ids=lambda value: None)
def test_a_bad_call_says_what_came_and_what_is_expected(message, changes):
    arguments = {"input_ids": [[1, 2]], "max_new_tokens": 3, "gamma": 2, "seed": 0} | changes
    with pytest.raises(SpecnbError, match=message):
        specnb.generate(tiny(), ScriptedDrafter([0, 0], 12), **arguments)
