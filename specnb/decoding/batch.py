"""The requests of one run: their prompts, what has been emitted, and who still runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any

import numpy as np
import torch

from specnb.arrays import is_torch, to_numpy
from specnb.errors import SpecnbError


class Batch:
    """Committed tokens of B requests, on the host.

    tokens: int64 [B, size], each row from column 0. lengths: int64 [B], committed tokens. prompt_lengths and
    totals: int64 [B], without and with the whole budget. rows: int64 [R], the requests that still run.
    padding: for each request the ids before its prompt, which no model sees but processors and criteria do.
    """

    def __init__(self, prompts: list[np.ndarray], max_new_tokens: int, padding: Sequence[np.ndarray] = ()) -> None:
        self.padding = list(padding) or [np.zeros(0, np.int64)] * len(prompts)
        self.prompt_lengths = np.array([len(p) for p in prompts], np.int64)
        self.totals = self.prompt_lengths + max_new_tokens
        self.size = int(self.totals.max(initial=0))
        self.tokens = np.zeros((len(prompts), self.size), np.int64)
        for row, prompt in enumerate(prompts):
            self.tokens[row, : len(prompt)] = prompt
        self.lengths = self.prompt_lengths.copy()
        self.rows = np.flatnonzero(self.lengths < self.totals)

    @property
    def live_lengths(self) -> np.ndarray:
        """Committed tokens of the rows that run, int64 [R]."""
        return self.lengths[self.rows]

    @property
    def remaining(self) -> np.ndarray:
        """Tokens that each running row may still emit, int64 [R]."""
        return self.totals[self.rows] - self.live_lengths

    def text(self, row: int | np.integer) -> np.ndarray:
        """Return the committed tokens of a request, int64 [length]: a view, not to be changed."""
        return self.tokens[row, : self.lengths[row]]

    def shown(self, row: int, emitted: np.ndarray) -> torch.Tensor:
        """Return a request's text with its padding and tokens that may follow, int64 [length]."""
        return torch.from_numpy(np.concatenate([self.padding[row], self.text(row), emitted]))

    def since(self, seen: np.ndarray) -> np.ndarray:
        """Return the committed tokens from seen[r] on, int64 [R, k], right-aligned: the left may be padding."""
        if len(self.rows) == 1:  # a view: there is no padding
            return self.tokens[self.rows[0], None, seen[0] : self.lengths[self.rows[0]]]
        lengths = self.live_lengths
        width = int((lengths - seen).max())
        columns = lengths[:, None] - width + np.arange(width)
        return self.tokens[self.rows[:, None], columns.clip(0)]

    def commit(self, blocks: np.ndarray, counts: np.ndarray) -> None:
        """Append the first counts[r] tokens of blocks [R, G+1] to each running row."""
        for row, block, count in zip(self.rows, blocks, counts, strict=True):
            start = self.lengths[row]
            self.tokens[row, start : start + count] = block[:count]
        self.lengths[self.rows] += counts

    def keep(self, index: np.ndarray) -> None:
        """Let only these of the running rows go on."""
        self.rows = self.rows[index]

    def check_ids(self, vocabulary: int) -> None:
        """Raise `SpecnbError` if a prompt has an id outside 0 … vocabulary − 1."""
        outside = (self.tokens < 0) | (self.tokens >= vocabulary)
        if outside.any():
            row, at = (int(i) for i in np.argwhere(outside)[0])
            raise SpecnbError(
                f"prompt {row} has id {self.tokens[row, at]} at position {at}; expected 0 … {vocabulary - 1}, the "
                "target's vocabulary: was it made by the target's tokenizer?"
            )

    def padded(self, fill: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return sequences int64 [B, L] padded on the right with `fill`, their lengths, their prompts' lengths."""
        longest = int(self.lengths.max(initial=0))
        beyond = np.arange(longest) >= self.lengths[:, None]
        sequences = torch.from_numpy(np.where(beyond, fill, self.tokens[:, :longest]))
        return sequences, torch.from_numpy(self.lengths.copy()), torch.from_numpy(self.prompt_lengths.copy())


def read_prompts(input_ids: Any, attention_mask: Any) -> list[np.ndarray]:
    """Return each request's prompt as int64 [length], without padding.

    Parameters
    ----------
    input_ids : int [B, L] or [L], or a list of B prompts (lists of ids or 1-D arrays) of any length.
    attention_mask : [B, L], its ones contiguous in each row (padding on the left or right); None keeps all.

    Raises
    ------
    SpecnbError : an empty prompt, ids that are no integers, a mask that doesn't fit or has holes.
    """
    if is_torch(input_ids) or isinstance(input_ids, np.ndarray):
        prompts = _from_array(to_numpy(input_ids), attention_mask)
    elif attention_mask is not None:
        raise SpecnbError("attention_mask came with a list of prompts; expected None, since a list has no padding")
    else:
        prompts = _from_list(input_ids)
    for row, prompt in enumerate(prompts):
        _check_prompt(row, prompt)
    return [prompt.astype(np.int64) for prompt in prompts]


def left_padding(attention_mask: Any, requests: int) -> np.ndarray:
    """Return how many padding ids stand before each prompt, int64 [requests]; a mask has a row for one or several."""
    if attention_mask is None:
        return np.zeros(requests, np.int64)
    mask = np.atleast_2d(_array("attention_mask", attention_mask)).astype(bool)
    return np.repeat(mask.argmax(1), requests // max(len(mask), 1))


def _from_array(ids: np.ndarray, mask: Any) -> list[np.ndarray]:
    ids = ids[None] if ids.ndim == 1 else ids
    if ids.ndim != 2:
        raise SpecnbError(f"input_ids have shape {list(ids.shape)}; expected [B, L], [L] or a list of prompts")
    if mask is None:
        return list(ids)
    mask = _array("attention_mask", mask)
    mask = mask[None] if mask.ndim == 1 else mask
    if mask.shape != ids.shape:
        raise SpecnbError(f"attention_mask has shape {list(mask.shape)}; expected {list(ids.shape)} as input_ids")
    if mask.dtype.kind not in "biuf" or not np.isin(mask, (0, 1)).all():
        came = np.unique(mask)[:4] if mask.dtype.kind in "biuf" else mask.dtype
        raise SpecnbError(f"attention_mask holds {came}; expected 1 for tokens and 0 for padding")
    mask = mask.astype(bool)
    for row, kept in enumerate(mask):
        if np.count_nonzero(np.diff(np.pad(kept, 1))) > 2:
            raise SpecnbError(
                f"attention_mask of row {row} has a hole; expected its ones in one piece, padding left or right"
            )
    return [row[kept] for row, kept in zip(ids, mask, strict=True)]


def _from_list(prompts: Any) -> list[np.ndarray]:
    if not isinstance(prompts, Iterable) or isinstance(prompts, (str, bytes, Mapping, Set)):
        raise SpecnbError(f"input_ids are {type(prompts).__name__}; expected int [B, L], [L] or a list of prompts")
    arrays = [_array(f"prompt {row}", prompt) for row, prompt in enumerate(prompts)]
    if arrays and all(array.ndim == 0 for array in arrays):  # one prompt, as ids
        return [np.stack(arrays)]
    return arrays


def _array(name: str, values: Any) -> np.ndarray:
    try:
        return to_numpy(values) if is_torch(values) else np.asarray(values)
    except ValueError as error:
        raise SpecnbError(f"{name} has rows of different lengths; expected a rectangle, or a list of ids") from error


def _check_prompt(row: int, prompt: np.ndarray) -> None:
    if prompt.ndim != 1 or len(prompt) == 0:
        raise SpecnbError(
            f"prompt {row} has shape {list(prompt.shape)}; expected at least one id: start an empty prompt with "
            "the tokenizer's beginning-of-text id"
        )
    if prompt.dtype.kind not in "iu":
        raise SpecnbError(f"prompt {row} holds {prompt.dtype}; expected integer ids")
