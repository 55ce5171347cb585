"""What can't be decoded is refused by name, with the reason, before the first token."""

from __future__ import annotations

import pytest
import torch
from tiny_models import SHAPE, randomised, tiny
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    CodeGenConfig,
    FalconConfig,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GPTBigCodeConfig,
    GPTJConfig,
    GPTNeoConfig,
    GPTNeoXConfig,
    MambaConfig,
    MambaForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)

import specnb
from specnb import SpecnbError
from specnb.decoding.support import check_model
from specnb.drafters import EarlyExitDrafter, ModelDrafter
from specnb.sampling import MAX_LOGITS


def mamba():
    return MambaForCausalLM(MambaConfig(vocab_size=12, hidden_size=16, num_hidden_layers=1, state_size=4)).eval()


def encoder_decoder():
    config = T5Config(vocab_size=12, d_model=16, d_ff=16, num_layers=1, num_heads=2, d_kv=8)
    return T5ForConditionalGeneration(config).eval()


def recurrent():
    model = tiny("qwen2")
    model.config.layer_types = ["linear_attention", "full_attention"]
    return model


def unwindowed():
    model = tiny("window")
    model.config.sliding_window = 0
    return model


def flash():
    model = tiny()
    model.config._attn_implementation = "flash_attention_2"
    return model


def short():
    return tiny("gpt2", max_position_embeddings=12)


def training():
    return tiny().train()


def partly_training():
    model = tiny()
    model.model.layers[1].train()
    return model


def local():
    return gpt_neo(window=8)


def gpt_neo(window):
    config = GPTNeoConfig(
        vocab_size=12, hidden_size=16, num_layers=2, num_heads=4, max_position_embeddings=64, window_size=window,
        attention_types=[[["global", "local"], 1]], bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    return randomised(AutoModelForCausalLM.from_config(config))


THETA = {"rope_theta": 10_000.0}
DYNAMIC = {"rope_type": "dynamic", "factor": 2.0} | THETA
LONGROPE = {
    "rope_type": "longrope", "short_factor": [1.0, 1.0], "long_factor": [2.0, 3.0],
    "original_max_position_embeddings": 12,
} | THETA  # fmt: skip


def dynamic():
    return tiny(max_position_embeddings=12, rope_parameters=DYNAMIC)


def longrope():
    return tiny(rope_parameters=LONGROPE)


def layered():
    kinds = ["full_attention", "sliding_attention"]
    config = Gemma3TextConfig(
        **SHAPE | {"num_key_value_heads": 2, "max_position_embeddings": 12}, head_dim=4, vocab_size=12,
        sliding_window=64, layer_types=kinds, rope_parameters={kind: DYNAMIC for kind in kinds},
    )  # fmt: skip
    return Gemma3ForCausalLM(config).eval()


def unextended():
    return tiny(max_position_embeddings=12)


def headless():
    return tiny().model


def alibi():
    config = FalconConfig(
        vocab_size=12, hidden_size=16, num_hidden_layers=1, num_attention_heads=4, alibi=True, bos_token_id=None,
        eos_token_id=None,
    )  # fmt: skip
    return AutoModelForCausalLM.from_config(config).eval()


def broken():
    model = tiny()
    with torch.no_grad():
        model.lm_head.weight[3] = float("nan")
    return model


def overflowing():
    model = tiny().half()
    with torch.no_grad():
        model.lm_head.weight[:] = 60_000
    return model


def wide():
    return tiny(vocabulary=MAX_LOGITS + 1, hidden_size=4, num_hidden_layers=1, num_attention_heads=1)


REFUSED = {
    "MambaForCausalLM can't be decoded here: its recurrent state can't roll back": mamba,
    "T5ForConditionalGeneration can't be decoded here: it is an encoder-decoder": encoder_decoder,
    "Qwen2ForCausalLM can't be decoded here: it has layers of kind linear_attention; expected full or": recurrent,
    "it has sliding-window layers and its window is 0; expected an integer > 0": unwindowed,
    "'flash_attention_2', which takes no 4-D mask; load it with attn_implementation='sdpa'": flash,
    "it is in training mode, where dropout is active; call .eval": training,
    "it knows 12 positions and this run may reach 13; lower max_new_tokens": short,
    "it is in training mode": partly_training,
    r"GPTNeoForCausalLM can't be decoded here: its windows \(8\) are inside its layers, not in the mask": local,
    "its dynamic RoPE changes with the longest row beyond 12 tokens and this run may reach 13": dynamic,
    "its longrope RoPE changes with the longest row beyond 12 tokens and this run may reach 13": longrope,
    "Gemma3ForCausalLM can't be decoded here: its dynamic RoPE changes with the longest row": layered,
    "LlamaForCausalLM can't be decoded here: it knows 12 positions and this run may reach 13": unextended,
    "its forward returns no logits for each token; expected one from AutoModelForCausalLM": headless,
    "FalconForCausalLM can't be decoded here: a forward with a length per row fails with ValueError: ": alibi,
    "its logits aren't finite in torch.float32; expected finite ones: are its weights NaN": broken,
    "its logits aren't finite in torch.float16": overflowing,
    "its vocabulary has 262145 ids; expected at most 262144": wide,
    "int can't be decoded here: it is no transformers model": int,
}


@pytest.mark.parametrize(("reason", "make"), REFUSED.items(), ids=[make.__name__ for make in REFUSED.values()])
def test_a_model_is_refused_by_name_as_target_and_as_draft(reason, make):
    model = make()
    with pytest.raises(SpecnbError, match=f"target .*{reason}"):
        specnb.generate(model, None, [[1, 2, 3]], max_new_tokens=10, seed=0)
    with pytest.raises(SpecnbError, match=f"draft .*{reason}"):
        specnb.generate(tiny(), ModelDrafter(model), [[1, 2, 3]], max_new_tokens=10, seed=0)


@pytest.mark.parametrize("make", [dynamic, longrope, unextended], ids=lambda make: make.__name__)
def test_up_to_the_known_length_such_a_model_decodes(make):
    model, prompt = make(), torch.tensor([[1, 2, 3]])
    expected = model.generate(prompt, do_sample=False, max_new_tokens=9, pad_token_id=0)
    run = specnb.generate(model, None, prompt, max_new_tokens=9, sampling=specnb.Sampling(0), seed=0)
    assert run.sequences.tolist() == expected.tolist()


@pytest.mark.parametrize("kind", ["linear", "yarn", "llama3"])
def test_a_rope_that_extends_the_positions_is_believed(kind):
    extra = {"low_freq_factor": 1.0, "high_freq_factor": 4.0} if kind == "llama3" else {}
    original = {} if kind == "linear" else {"original_max_position_embeddings": 12}
    rope = {"rope_type": kind, "factor": 2.0} | THETA | original | extra
    model = tiny(max_position_embeddings=12, rope_parameters=rope)
    check_model("target", model, 24)
    with pytest.raises(SpecnbError, match="it knows 24 positions and this run may reach 25"):
        check_model("target", model, 25)


SMALL = {"vocab_size": 12, "bos_token_id": None, "eos_token_id": None}
GPT = {"n_embd": 16, "n_layer": 2, "n_head": 4}
DECODED = [
    GPTJConfig(**SMALL, **GPT, rotary_dim=4),
    CodeGenConfig(**SMALL, **GPT, rotary_dim=4),
    GPTBigCodeConfig(**SMALL, **GPT),
    GPTNeoXConfig(**SMALL, hidden_size=16, num_hidden_layers=2, num_attention_heads=4, intermediate_size=24),
]


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # GPTBigCode in transformers 5.17
@pytest.mark.parametrize("config", [*DECODED, None], ids=lambda config: getattr(config, "model_type", "gpt_neo"))
def test_other_kinds_of_models_decode_ragged_batches(config):
    model = gpt_neo(window=24) if config is None else randomised(AutoModelForCausalLM.from_config(config))
    prompts = [[1, 2, 3], [4], [5, 6, 7, 8, 9]]
    run = specnb.generate(
        model, ModelDrafter(tiny(seed=1)), prompts, max_new_tokens=12, gamma=3, sampling=specnb.Sampling(0), seed=0
    )
    for row, prompt in enumerate(prompts):
        assert run.tokens(row) == specnb.generate(
            model, None, [prompt], max_new_tokens=12, sampling=specnb.Sampling(0), seed=0
        ).tokens()  # fmt: skip
        expected = model.generate(
            torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt)), do_sample=False, max_new_tokens=12,
            pad_token_id=0,
        )  # fmt: skip
        assert run.tokens(row) == expected[0, len(prompt) :].tolist()


HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 16, "intermediate_size": 24}
WINDOWED = {
    "cohere2": {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]},
    "phi3": {"sliding_window": 8},
    "qwen3": {"sliding_window": 8, "use_sliding_window": True, "max_window_layers": 1, "head_dim": 4},
    "gemma2": {"sliding_window": 8, "head_dim": 4},
    "gpt_oss": {"sliding_window": 8, "head_dim": 4, "num_local_experts": 2, "num_experts_per_tok": 1},
}


@pytest.mark.parametrize("kind", WINDOWED)
def test_other_kinds_of_models_with_windows_decode_ragged_batches(kind):
    ids = {"pad_token_id": None, "bos_token_id": None, "eos_token_id": None}
    config = AutoConfig.for_model(kind, vocab_size=12, num_hidden_layers=2, **HEADS, **ids, **WINDOWED[kind])
    config._attn_implementation = "eager" if kind in ("gemma2", "gpt_oss") else "sdpa"
    model = randomised(AutoModelForCausalLM.from_config(config))
    prompts = [[1, 2, 3], [4], [5, 6, 7, 8, 9, 10, 11, 1, 2, 3]]
    expected = []
    for prompt in prompts:
        run = model.generate(
            torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt)), do_sample=False, max_new_tokens=12,
            pad_token_id=0,
        )  # fmt: skip
        expected.append(run[0, len(prompt) :].tolist())
    for drafter in (ModelDrafter(tiny(seed=1)), EarlyExitDrafter(1), ModelDrafter(model)):
        run = specnb.generate(model, drafter, prompts, max_new_tokens=12, gamma=3, sampling=specnb.Sampling(0), seed=0)
        assert [run.tokens(row) for row in range(3)] == expected


def test_a_window_that_the_run_never_fills_is_full_attention():
    model = tiny("mistral", sliding_window=8)
    run = specnb.generate(model, None, [[1, 2, 3]], max_new_tokens=5, sampling=specnb.Sampling(0), seed=0)
    expected = model.generate(torch.tensor([[1, 2, 3]]), do_sample=False, max_new_tokens=5, pad_token_id=0)
    assert run.sequences.tolist() == expected.tolist()
