"""Which models can be decoded here, and why the others can't: said before the first token."""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedModel

from specnb.decoding.cache import cache_name, forward_names
from specnb.decoding.selfcheck import self_check
from specnb.decoding.windows import FULL, SLIDING, layer_kinds
from specnb.errors import SpecnbError

ATTENTION = ("eager", "sdpa")
"""Implementations that take the 4-D mask by which the rows of a batch may hold different lengths."""

LENGTH_DEPENDENT = ("dynamic", "longrope")
"""Kinds of RoPE whose frequencies change with the longest row of a forward, rejected drafts included."""


def check_model(role: str, model: Any, tokens: int) -> None:
    """Raise `SpecnbError` unless the model is a decoder-only transformers model with attention.

    Parameters
    ----------
    role : "target" or "draft", for the message.
    tokens : length that the longest request may reach.
    """
    check_kind(role, model)
    text = model.config.get_text_config(decoder=True)
    reason = (
        _architecture(model)
        or _layers(text, tokens)
        or beyond_positions(text, tokens)
        or _use(model, text)
        or self_check(model)
    )
    if reason:
        raise SpecnbError(f"{role} {type(model).__name__} can't be decoded here: {reason}")


def check_kind(role: str, model: Any) -> None:
    """Raise `SpecnbError` unless it is a transformers model."""
    if not isinstance(model, PreTrainedModel):
        reason = "it is no transformers model; expected one from AutoModelForCausalLM"
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
    kinds, window = layer_kinds(config), getattr(config, "sliding_window", None)
    if kinds == ["local"]:
        window = getattr(config, "window_size", None)
        return "" if window is not None and window >= tokens else (
            f"its windows ({window}) are inside its layers, not in the mask, and this run may reach {tokens} tokens; "
            "expected windows in the mask: keep prompt and max_new_tokens within the window, or use another model"
        )  # fmt: skip
    if other := sorted(set(kinds) - {FULL, SLIDING}):
        return f"it has layers of kind {', '.join(other)}; expected full or sliding attention, which can roll back"
    if SLIDING in kinds and not (isinstance(window, int) and window > 0):
        return f"it has sliding-window layers and its window is {window!r}; expected an integer > 0"
    return ""


def beyond_positions(config: Any, tokens: int, remedy: str = "lower max_new_tokens") -> str:
    """Say whether the run may leave the positions that the model knows, or change those it has used; "" if not."""
    longest = getattr(config, "max_position_embeddings", None)
    if longest is None:
        return ""
    known, name = longest, "original_max_position_embeddings"
    for rope in _ropes(config):
        kind = rope.get("rope_type", rope.get("type"))
        original = rope.get(name) or getattr(config, name, None) or longest
        switch = original if kind == "longrope" else longest
        if kind in LENGTH_DEPENDENT and switch < tokens:
            return (
                f"its {kind} RoPE changes with the longest row beyond {switch} tokens and this run may reach {tokens}; "
                f"keep prompt and max_new_tokens within {switch}"
            )
        # Some configs count the extension in max_position_embeddings and some don't: the larger one holds.
        known = max(known, int(original * (rope.get("factor") or 1)))
    return f"it knows {known} positions and this run may reach {tokens}; {remedy}" if known < tokens else ""


def _ropes(config: Any) -> list[dict[str, Any]]:
    """Return the parameters of each RoPE: of one for all layers, or of one per kind of layer."""
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    nested = [values for values in rope.values() if isinstance(values, dict)]
    return nested or [rope]


def _use(model: Any, config: Any) -> str:
    attention = getattr(config, "_attn_implementation", None)
    if attention not in ATTENTION:
        return f"its attention is {attention!r}, which takes no 4-D mask; load it with attn_implementation='sdpa'"
    if any(module.training for module in model.modules()):
        return "it is in training mode, where dropout is active; call .eval() on it first"
    if len(set(getattr(model, "hf_device_map", {}).values())) > 1:
        return "it is spread over several devices; load it on one"
    return ""
