"""How far back each kind of attention layer sees."""

from __future__ import annotations

from typing import Any

import torch

FULL, SLIDING = "full_attention", "sliding_attention"
"""The kinds of layers that can roll back, by the names that transformers' configs give them."""


def layer_kinds(config: Any) -> list[str]:
    """Return the kinds of a model's layers, sorted, each once.

    GPT-Neo's windows are inside its layers, not in the mask; its kind is "local".
    """
    older = getattr(config, "attention_layers", None) or getattr(config, "attention_types", None)
    if "'local'" in repr(older):  # its types are nested lists
        return ["local"]
    kinds = getattr(config, "layer_types", None)
    if kinds is None:
        kinds = [FULL if getattr(config, "sliding_window", None) is None else SLIDING]
    return sorted(set(kinds))


def windows(config: Any) -> dict[str, int | None]:
    """Return the tokens that each kind of layer sees, its own among them; None is all."""
    return {kind: config.sliding_window if kind == SLIDING else None for kind in layer_kinds(config)} or {FULL: None}


def visible_slots(slots: torch.Tensor, positions: torch.Tensor, window: int | None) -> torch.Tensor:
    """Return which slots each query may look at, bool [R, 1, k, slots]: its own and before, `window` at most.

    slots: int64 [slots], their positions. positions: int64 [R, k], those of the queries.
    """
    positions = positions[:, None, :, None]
    seen = slots <= positions
    return seen if window is None else seen & (slots > positions - window)
