"""Which models can be decoded here, and why the others can't: said before the first token."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from transformers import PreTrainedModel

from specnb.decoding.cache import CachedModel, cache_name, forward_names
from specnb.errors import SpecnbError

ATTENTION = ("eager", "sdpa")
"""Implementations that take the 4-D mask by which the rows of a batch may hold different lengths."""

CHECK_TOLERANCE = 1024
"""How far cached logits may be from uncached ones, in units of the dtype's epsilon times the largest logit.
Another order of the same sums costs some tens of units; a lost or misplaced token is far outside, unless the
weights are so small that context hardly matters."""

_passed: WeakKeyDictionary[Any, str] = WeakKeyDictionary()  # model → the attention it was checked with


def check_model(role: str, model: Any, tokens: int) -> None:
    """Raise `SpecnbError` unless the model is a decoder-only transformers model with full attention.

    Parameters
    ----------
    role : "target" or "draft", for the message.
    tokens : length that the longest request may reach.
    """
    if not isinstance(model, PreTrainedModel):
        reason = "it is no transformers model; expected one from AutoModelForCausalLM"
    else:
        text = model.config.get_text_config(decoder=True)
        reason = _architecture(model) or _layers(text, tokens) or _use(model, text, tokens) or _self_check(model)
    if reason:
        raise SpecnbError(f"{role} {type(model).__name__} can't be decoded here: {reason}")


def _architecture(model: Any) -> str:
    if getattr(model.config, "is_encoder_decoder", False):
        return "it is an encoder-decoder; expected a decoder-only model"
    if getattr(model, "_is_stateful", False):
        return "its recurrent state can't roll back rejected drafts; expected attention in every layer"
    if missing := {"attention_mask", "position_ids", cache_name(type(model))} - forward_names(type(model)):
        return f"its forward takes no {', '.join(sorted(missing))}, which rows of different lengths need"
    return ""


def _layers(config: Any, tokens: int) -> str:
    """Say what is wrong with the kinds of layers; a window that the run never fills is full attention."""
    kinds, window = getattr(config, "layer_types", None), getattr(config, "sliding_window", None)
    if kinds is None:
        kinds = ["full_attention" if window is None else "sliding_attention"]
    if other := sorted(set(kinds) - {"full_attention", "sliding_attention"}):
        return f"it has layers of kind {', '.join(other)}; expected full attention, which can roll back, in each"
    if "sliding_attention" in kinds and (window is None or window < tokens):
        return (
            f"it has sliding-window layers (window {window}) and this run may reach {tokens} tokens; expected full "
            "attention: keep prompt and max_new_tokens within the window, or use another model"
        )
    return ""


def _use(model: Any, config: Any, tokens: int) -> str:
    attention = getattr(config, "_attn_implementation", None)
    if attention not in ATTENTION:
        return f"its attention is {attention!r}, which takes no 4-D mask; load it with attn_implementation='sdpa'"
    if model.training:
        return "it is in training mode, where dropout is active; call .eval() on it first"
    if len(set(getattr(model, "hf_device_map", {}).values())) > 1:
        return "it is spread over several devices; load it on one"
    longest = getattr(config, "max_position_embeddings", None)
    if getattr(config, "rope_parameters", None) is None and longest is not None and longest < tokens:
        return f"it knows {longest} positions and this run may reach {tokens}; lower max_new_tokens"
    return ""


@torch.inference_mode()
def _self_check(model: Any) -> str:
    """Compare a ragged, rolled-back, cached forward with an uncached one, once per model."""
    attention = model.config._attn_implementation
    if _passed.get(model) == attention:
        return ""
    ids = torch.tensor([[1, 2, 3, 4, 5], [3, 5, 2, 1, 4]], device=model.device)
    ids %= model.get_input_embeddings().num_embeddings
    plain = model(input_ids=ids, use_cache=False).logits[:, -2:]

    run = CachedModel(model, rows=2, size=6)
    # Row 0 holds 2 tokens, row 1 one; both also two that are rejected: 4 and 3 of the 4 columns count.
    run.logits(torch.stack([ids[0, [0, 1, 0, 0]], ids[1, [0, 0, 1, 1]]]), np.array([4, 3]), keep=1)
    run.rollback(np.array([2, 1]))
    cached = run.logits(ids[:, 1:], np.array([5, 5]), keep=2)

    error, largest = float((cached - plain).abs().max()), float(plain.abs().max())
    if not error <= CHECK_TOLERANCE * torch.finfo(plain.dtype).eps * largest:
        return (
            f"after a rollback its cached logits are {error:.3g} away from uncached ones (largest {largest:.3g}), so "
            "it keeps state that can't roll back, or ignores the 4-D mask or the position ids"
        )
    _passed[model] = attention
    return ""
