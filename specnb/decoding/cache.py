"""One preallocated key/value cache with a length per row: rejecting drafts is moving integers.

Row b's token at position t lies in slot t of row b, whatever its neighbours do. A forward writes at per-row
positions, a mask hides what lies beyond each query's own position, and whatever a rejected draft left behind
is overwritten by the next token at that position before any query may see it.
"""

from __future__ import annotations

import functools
import inspect
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers.cache_utils import Cache, CacheLayerMixin

from specnb.decoding.ranks import ranks_of
from specnb.decoding.states import States
from specnb.decoding.windows import visible_slots, windows


@dataclass
class Step:
    """Where the forward that is running writes and reads, shared by all layers of one cache."""

    size: int  # slots per row
    slots: Any = None  # index into [rows, slots] of the fed tokens; None where all rows hold equally many
    start: int = 0  # tokens cached before this forward, where they do
    end: int = 0  # slots that the longest row uses


class RowLayer(CacheLayerMixin):
    """Keys and values of one attention layer, [B, heads, size, width], allocated once."""

    is_sliding = False

    def __init__(self, step: Step) -> None:
        super().__init__()
        self.step = step

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Allocate all slots, as zeros: a masked slot must hold something finite."""
        self.keys, self.values = (
            states.new_zeros(*states.shape[:2], self.step.size, states.shape[3])
            for states in (key_states, value_states)
        )
        self.is_initialized = True

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        """Write the new states [B, heads, k, width] at their slots; return views up to the longest row."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        keys: Any = self.keys
        values: Any = self.values
        step, width = self.step, key_states.shape[2]
        if step.slots is None:
            keys.narrow(2, step.start, width).copy_(key_states)
            values.narrow(2, step.start, width).copy_(value_states)
        else:
            keys.transpose(1, 2)[step.slots] = key_states.transpose(1, 2)
            values.transpose(1, 2)[step.slots] = value_states.transpose(1, 2)
        return keys.narrow(2, 0, step.end), values.narrow(2, 0, step.end)

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Keep only these rows."""
        if self.keys is not None and self.values is not None:
            self.keys, self.values = self.keys[indices], self.values[indices]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return how many slots `update` will return, and the first one."""
        return self.step.end, 0

    def get_seq_length(self) -> int:
        """Return the tokens cached before this forward; only asked for where the rows are level."""
        return self.step.start

    def get_max_length(self) -> int:
        """Return the number of slots."""
        return self.step.size


class CachedModel:
    """A model with its cache: feeds it what it hasn't seen and forgets what was rejected.

    seen: int64 [R], tokens of each row in the cache. Invariant of the loop: committed − 1 for the target.
    calls: forwards so far. ranks: the processes that the model is split over, or None; each caches its own heads.
    states: what takes the hidden states of each forward, if a drafter reads them.
    """

    def __init__(self, model: Any, rows: int, size: int) -> None:
        self.model, self.device = model, model.device
        self.seen = np.zeros(rows, np.int64)
        self.calls = 0
        self.states: States | None = None
        self.ranks = ranks_of(model)
        self.step = Step(size)
        layer: Any = functools.partial(RowLayer, self.step)
        self.cache = Cache(layer_class_to_replicate=layer)
        self.cache_name = cache_name(type(model))
        self.keeps_logits = "logits_to_keep" in forward_names(type(model))
        self.last_id = model.get_input_embeddings().num_embeddings - 1
        self.arange = torch.arange(max(size, rows), device=self.device)
        self.hidden = torch.full((), torch.finfo(model.dtype).min, dtype=model.dtype, device=self.device)
        self.visible = torch.zeros((), dtype=model.dtype, device=self.device)
        self.windows = windows(model.config.get_text_config(decoder=True))
        self.nearest = min((window for window in self.windows.values() if window is not None), default=size)

    def logits(self, tokens: torch.Tensor, ends: np.ndarray, keep: int) -> torch.Tensor:
        """Feed tokens and return the logits [R, keep, V] of the last columns.

        Parameters
        ----------
        tokens : int64 [R, k]; the last column of row b stands at position ends[b] − 1. Columns before seen[b]
            are padding. Ids that the model has no embedding for are fed as its nearest one.
        ends : int64 [R], the length of each row with these tokens; kept, so not to be changed by the caller.
        keep : columns to return, counted from the right.
        """
        if self.ranks is not None:
            self.ranks.agree("feeds", tokens.cpu().numpy(), ends)
        mask, positions = self._place(tokens.shape[1], ends)
        arguments: dict[str, Any] = {self.cache_name: self.cache}
        if self.keeps_logits:
            arguments["logits_to_keep"] = keep
        with nullcontext() if self.states is None else self.states.taken(self.model, self.cache, ends):
            output = self.model(
                input_ids=tokens.to(self.device).clamp(0, self.last_id),
                attention_mask=mask,
                position_ids=positions,
                use_cache=True,
                **arguments,
            )
        if self.states is not None and not self.calls:
            self.states.check(self.model, output.logits[:, -1:])
        self.seen = ends
        self.calls += 1
        return output.logits[:, -keep:]

    def rollback(self, lengths: np.ndarray) -> None:
        """Forget every cached token from position lengths[b] on."""
        self.seen = np.minimum(self.seen, lengths)

    def keep(self, rows: np.ndarray) -> None:
        """Keep only these rows of the batch, in this order."""
        self.seen = self.seen[rows]
        if self.states is not None:
            self.states.keep(rows)
        self.cache.batch_select_indices(torch.from_numpy(rows).to(self.device))

    def _place(self, width: int, ends: np.ndarray) -> tuple[Any, torch.Tensor]:
        """Set the step for `width` columns that end at `ends`; return its 4-D mask and position ids."""
        step, start = self.step, int(ends[0]) - width
        if len(ends) == 1 or (np.all(ends == ends[0]) and np.all(self.seen == start)):
            step.slots, step.start, step.end = None, start, start + width
            positions = self.arange[None, start : step.end]
            # One query sees everything, and a fresh prompt is what transformers calls causal: no mask needed, unless
            # a window ends before them.
            clear = (width == 1 or start == 0) and step.end <= self.nearest
            return (None if clear else self._mask(positions)), positions

        columns = ends[:, None] - width + np.arange(width)
        # Padding, and drafts beyond a row's budget, go to the last slot. No token that counts is ever there:
        # the last token of the longest request is emitted but never fed.
        waste = (columns < self.seen[:, None]) | (columns >= step.size)
        columns = columns.clip(0, step.size - 1)
        step.end = int(columns.max()) + 1
        both = np.stack([columns, np.where(waste, step.size - 1, columns)])
        positions, slots = torch.from_numpy(both).to(self.device)
        step.slots = (self.arange[: len(ends), None], slots)
        return self._mask(positions), positions

    def _mask(self, positions: torch.Tensor) -> Any:
        """Return the additive mask [R, 1, k, end] of queries at positions [R, k]; by kind of layer if there are two.

        Additive, because eager attention would add a boolean mask as 0 and 1 without a word.
        """
        slots, masks = self.arange[: self.step.end], {}
        for kind, window in self.windows.items():
            masks[kind] = torch.where(visible_slots(slots, positions, window), self.visible, self.hidden)
        return masks if len(masks) > 1 else masks[kind]


@functools.cache
def forward_names(kind: type) -> frozenset[str]:
    """Return the arguments that a model class names in its forward."""
    return frozenset(inspect.signature(kind.forward).parameters)  # type: ignore[attr-defined]


def cache_name(kind: type) -> str:
    """Return the keyword that a model class takes its cache by; transformers renamed it in 5.24."""
    return "cache" if "cache" in forward_names(kind) else "past_key_values"
