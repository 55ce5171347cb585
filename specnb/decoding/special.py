"""The ids that mean something besides text: where a request ends, and what fills a row behind its end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from specnb.arrays import is_torch, to_numpy
from specnb.errors import SpecnbError


def stop_ids(model: Any, eos_token_id: Any) -> np.ndarray:
    """Return the ids that end a request, int64 [n]; none for None, the model's own for "target".

    Raises
    ------
    SpecnbError : something that isn't an id, ids or "target", or an id that a model doesn't have.
    """
    own = isinstance(eos_token_id, str) and eos_token_id == "target"  # an array would compare elementwise
    ids = configured(model, "eos_token_id") if own else eos_token_id
    if ids is None:
        return np.zeros(0, np.int64)
    text = isinstance(ids, (str, bytes, Mapping))
    ids = list(ids) if isinstance(ids, Iterable) and not text and not hasattr(ids, "ndim") else ids
    try:
        array = to_numpy(ids) if is_torch(ids) else np.asarray(ids)
    except ValueError:  # lists of different lengths
        array = None
    if text or array is None or array.ndim > 1 or (array.dtype.kind not in "iu" and array.size):
        raise SpecnbError(f"eos_token_id is {eos_token_id!r}; expected an id, several ids, None or 'target'")
    array = array.reshape(-1)
    if not own and model is not None:
        _check_ids(array, model.get_input_embeddings().num_embeddings)
    return array.astype(np.int64)


def _check_ids(ids: np.ndarray, vocabulary: int) -> None:
    outside = ids[(ids < 0) | (ids >= vocabulary)]
    if outside.size:
        raise SpecnbError(
            f"eos_token_id has {outside[0]}; expected 0 … {vocabulary - 1}, the target's vocabulary, or None to end "
            "nowhere"
        )


def pad_id(model: Any) -> int:
    """Return the id that pads sequences on the right: the model's pad id, else 0."""
    pad = configured(model, "pad_token_id")
    return 0 if pad is None or int(pad) < 0 else int(pad)


def configured(model: Any, name: str) -> Any:
    """Return what the model's generation config says, or else its config."""
    value = getattr(getattr(model, "generation_config", None), name, None)
    return getattr(model.config.get_text_config(decoder=True), name, None) if value is None else value
