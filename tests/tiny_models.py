"""Tiny random transformers models whose context matters, and doubles that show what decoding feeds a model."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)
from transformers.modeling_outputs import CausalLMOutputWithPast

from specnb.decoding.choosing import Proposal

SCALE = 0.3
"""Standard deviation of the weights: at transformers' default of 0.02 a corrupt cache moves logits by 1e-4 only."""

SHAPE = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 24,
    "max_position_embeddings": 128,
    "eos_token_id": None,
    "pad_token_id": None,
    "bos_token_id": None,
}
KINDS = {
    "llama": (LlamaConfig, LlamaForCausalLM, {}),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM, {"num_key_value_heads": 2}),
    "mistral": (MistralConfig, MistralForCausalLM, {"num_key_value_heads": 2, "sliding_window": None}),
    "gpt2": (GPT2Config, GPT2LMHeadModel, {}),
    "window": (MistralConfig, MistralForCausalLM, {"num_key_value_heads": 2, "sliding_window": 8}),
    "hybrid": (Gemma3TextConfig, Gemma3ForCausalLM, {
        "num_key_value_heads": 2, "head_dim": 4, "sliding_window": 8,
        "layer_types": ["sliding_attention", "full_attention"]}),
}  # fmt: skip


def tiny(kind="llama", vocabulary=12, seed=0, attention="sdpa", **changes):
    """Return a random model of that kind in eval mode; the same seed gives the same weights."""
    config_class, model_class, own = KINDS[kind]
    config = config_class(vocab_size=vocabulary, **SHAPE | own | changes)
    config._attn_implementation = attention
    return randomised(model_class(config), seed)


def randomised(model, seed=0):
    """Return the model in eval mode with weights from that seed, large enough that context matters."""
    model.eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(torch.randn(weight.shape, generator=generator) * SCALE + (weight.ndim == 1))
    return model


def uncached(model, ids):
    """Return the logits [L, V] of one sequence, from one plain forward."""
    with torch.no_grad():
        return model(input_ids=torch.as_tensor(ids)[None], use_cache=False).logits[0]


class PrefixModel(LlamaForCausalLM):
    """A model whose logits are a hash of the exact tokens that each query may see.

    It keeps ids in the cache as keys and reads them back under the mask it is given, so a stale, missing or
    misplaced token changes the law completely. `seen` lists the prefixes of each forward: [rows][columns].
    """

    def __init__(self, vocabulary=6):
        super().__init__(LlamaConfig(vocab_size=vocabulary, **SHAPE))
        self.eval()
        self.seen = []

    def forward(
        self, input_ids=None, attention_mask=None, position_ids=None, past_key_values=None, cache=None,
        use_cache=None, logits_to_keep=0, **kwargs,
    ):  # fmt: skip
        """Return the logits of the prefixes that the mask shows, and note them."""
        keys = (input_ids + 1.0)[:, None, :, None]  # 0 is an empty slot
        store = past_key_values if cache is None else cache
        if store is not None:
            keys, _ = store.update(keys, keys, 0)
        rows, width = input_ids.shape
        slots = keys[:, 0, :, 0].long()
        own = torch.arange(width) + slots.shape[1] - width
        causal = torch.arange(slots.shape[1]) <= own[:, None]
        visible = (causal if attention_mask is None else attention_mask[:, 0] == 0).expand(rows, width, -1)
        prefixes = [
            [tuple((slots[b][visible[b, i]] - 1).tolist()) for i in range(width)][-logits_to_keep:] for b in range(rows)
        ]
        self.seen.append(prefixes)
        logits = [[self.logits_of(prefix) for prefix in row] for row in prefixes]
        return CausalLMOutputWithPast(logits=torch.tensor(np.array(logits), dtype=torch.float32))

    def logits_of(self, prefix):
        """Return the logits that follow a prefix: normal deviates from its hash."""
        seed = [len(prefix), *(id_ + 1 for id_ in prefix)]
        return np.random.default_rng(seed).normal(size=self.config.vocab_size)


@dataclass
class ScriptedDrafter:
    """Drafts of which exactly accepted[request] are kept in each round, at any temperature.

    A kept draft is declared almost impossible under q, so any p(x) passes; the others have an id beyond the
    target's vocabulary, whose p is 0. `interrupt_at` raises an exception instead of that proposal.
    """

    accepted: list[int]
    vocabulary: int
    interrupt_at: int = -1
    exception: Any = KeyboardInterrupt
    calls: int = 0
    _chooser: Any = field(default=None, repr=False)
    _gamma: int = 0

    def start(self, batch, chooser, gamma, target):
        """Return itself: a script serves one run."""
        self._chooser, self._gamma = chooser, gamma
        return self

    def propose(self, batch, limits):
        """Return the script's drafts, and raise at the scripted round."""
        self.calls += 1
        if self.calls - 1 == self.interrupt_at:
            raise self.exception
        R, G, V = len(limits), int(limits.max()), self.vocabulary
        kept = np.arange(G) < np.array(self.accepted)[batch.rows][:, None]
        drafts = np.where(kept, (batch.live_lengths[:, None] * 5 + np.arange(G)) % V, V)
        q = np.zeros((R, G, V + 1))
        q[..., V] = np.where(kept, 1 - 2.0**-40, 1)
        np.put_along_axis(q, drafts[..., None], np.where(kept, 2.0**-40, 1)[..., None], 2)
        as_backend = self._chooser.array
        return Proposal(as_backend(torch.from_numpy(drafts)), as_backend(torch.from_numpy(q)), limits)

    def rollback(self, lengths):
        """Hold nothing."""

    def keep(self, index):
        """Hold nothing."""
