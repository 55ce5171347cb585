"""A transformers cache that already holds the beginning of the prompts, copied into the cache of a run."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from specnb.decoding.arguments import kind_of
from specnb.decoding.cache import CachedModel, RowLayer
from specnb.errors import SpecnbError


def take_over(cache: Any, run: CachedModel, prompt_lengths: np.ndarray, padding: np.ndarray) -> None:
    """Copy keys and values of cached prompt tokens, so that the run feeds only the rest; the cache isn't changed.

    Parameters
    ----------
    cache : a transformers cache (dynamic or static) with the first tokens of every row. It may hold whole
        prompts: the last token is fed again, since its logits are needed.
    run : a fresh run over all rows.
    prompt_lengths : int64 [R], without padding. padding: int64 [R], cached slots before each row's first token.

    Raises
    ------
    SpecnbError : another kind of cache, one of another model, another number of rows, more tokens than
        prompts have, or a window that has already dropped what the next token needs.
    """
    _check_kind(cache)
    held = int(cache.get_seq_length())
    if held == 0:
        return
    R, tokens = len(prompt_lengths), held - padding
    _check_model(cache, run.model.config.get_text_config(decoder=True))
    for layer in cache.layers:
        _check_layer(layer, R, held)
    if (tokens > prompt_lengths).any():
        row = int((tokens > prompt_lengths).argmax())
        raise SpecnbError(
            f"the cache holds {tokens[row]} tokens of row {row}, whose prompt has {prompt_lengths[row]}; expected the "
            "beginning of the prompt: pass the whole text as input_ids"
        )
    seen = np.clip(tokens, 0, prompt_lengths - 1)
    layers: Any = [_copied(layer, run, held, padding, seen) for layer in cache.layers]
    run.cache.layers = layers
    run.seen = seen


def _check_kind(cache: Any) -> None:
    """Raise `SpecnbError` unless it is a cache with layers, as transformers has had since its tuples."""
    if isinstance(cache, type) or not (hasattr(cache, "layers") and callable(getattr(cache, "get_seq_length", None))):
        raise SpecnbError(
            f"the cache is {kind_of(cache)}; expected a transformers cache, such as the DynamicCache that a forward "
            "with use_cache=True returns"
        )


def _check_model(cache: Any, config: Any) -> None:
    """Raise `SpecnbError` if a cache has other layers or heads than the model; a config may not say how many."""
    layers, heads = getattr(config, "num_hidden_layers", None), getattr(config, "num_key_value_heads", None)
    own = None if layers is None else layers - (getattr(config, "num_kv_shared_layers", None) or 0)
    if own is not None and len(cache.layers) != own:
        raise SpecnbError(f"the cache has {len(cache.layers)} layers; expected the target's {own}")
    states = getattr(cache.layers[0], "keys", None)
    if isinstance(heads, int) and torch.is_tensor(states) and states.ndim == 4 and states.shape[1] != heads:
        raise SpecnbError(f"the cache has {states.shape[1]} heads of keys; expected the target's {heads}")


def _check_layer(layer: Any, rows: int, held: int) -> None:
    keys: Any = getattr(layer, "keys", None)
    fits = torch.is_tensor(keys) and keys.ndim == 4 and (keys.shape[2] >= held or hasattr(layer, "cumulative_length"))
    rolling = getattr(layer, "is_sliding", False) and type(layer).__name__.startswith("Static")
    if not fits or rolling:
        raise SpecnbError(
            f"the cache has a layer of kind {type(layer).__name__}; expected keys and values by position, as a "
            "DynamicCache has"
        )
    if len(keys) != rows:
        raise SpecnbError(f"the cache has {len(keys)} rows; expected {rows}, one for each request")


def _copied(layer: Any, run: CachedModel, held: int, padding: np.ndarray, seen: np.ndarray) -> RowLayer:
    """Return a layer of the run with the states of a cached one at each row's own positions."""
    copy = RowLayer(run.step)
    copy.lazy_initialization(layer.keys, layer.values)
    kept = min(layer.keys.shape[2], held)
    window = getattr(layer, "sliding_window", None)
    stores: Any = (copy.keys, copy.values)
    for row, (offset, known) in enumerate(zip(padding.tolist(), seen.tolist(), strict=True)):
        first = held - kept - offset  # the position of the first state that is kept
        needed = 0 if window is None else max(0, known - window + 1)
        if first > needed:
            raise SpecnbError(
                f"a sliding-window layer of the cache begins at position {first} of row {row}, but the next token "
                f"looks back to {needed}; expected a cache of at most the prompt without its last token"
            )
        start = max(first, 0)
        for store, states in zip(stores, (layer.keys, layer.values), strict=True):
            store[row, :, start:known] = states[row, :, start - first : known - first]
    return copy
