"""Where a request ends before its budget does: ids, stop strings and transformers' stopping criteria."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from transformers.generation import stopping_criteria as theirs

from specnb.decoding.arguments import callables, check_tokenizer, listed
from specnb.decoding.processing import own_copies
from specnb.errors import SpecnbError

STATELESS = (theirs.MaxLengthCriteria, theirs.MaxTimeCriteria, theirs.StopStringCriteria, theirs.EosTokenCriteria)
"""transformers' own criteria, which keep nothing from one call to the next."""

Text = Callable[[int, np.ndarray], torch.Tensor]
"""From a request and tokens that follow what it has committed to its text, int64 [L]."""


class Ends:
    """What ends the requests of a batch, asked about each emitted token once, in order.

    ids: int64 [n]. criteria: called with one request's text as a batch of one and no scores; in a batch, each
    request has its own copy of those that may keep a state. device: where they get the text.
    """

    def __init__(
        self, ids: np.ndarray, criteria: Iterable[Any] | None, requests: int, device: torch.device | str = "cpu"
    ) -> None:
        criteria = callables("stopping_criteria", criteria, "transformers.StoppingCriteria")
        self.ids, self.device = ids, device
        self.stateless = all(type(c) in STATELESS for c in criteria)
        self._criteria = own_copies(criteria, requests, STATELESS) if criteria else []
        self._answers: dict[tuple[int, int], bool] = {}

    def cut(
        self, rows: np.ndarray, text: Text, tokens: np.ndarray, counts: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Cut each row's counts[r] tokens behind the first that ends it; return the counts and which rows ended."""
        if not self._criteria:
            return self._cut_by_ids(tokens, counts)
        counts, ended = counts.copy(), np.zeros(len(counts), bool)
        for r, row in enumerate(rows.tolist()):
            last = (k for k in range(int(counts[r])) if self.after(row, text, tokens[r, : k + 1]))
            if (k := next(last, None)) is not None:
                counts[r], ended[r] = k + 1, True
        self._answers.clear()
        return counts, ended

    def after(self, row: int, text: Text, emitted: np.ndarray) -> bool:
        """Say whether a request ends with the last of the tokens that this round emits; criteria aren't asked twice."""
        if emitted[-1] in self.ids:
            return True
        key = (row, len(emitted))
        if self._criteria and key not in self._answers:
            whole = text(row, emitted)[None].to(self.device)
            self._answers[key] = any([bool(torch.as_tensor(c(whole, None)).all()) for c in self._criteria[row]])
        return bool(self._criteria) and self._answers[key]

    def _cut_by_ids(self, tokens: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if not self.ids.size:
            return counts, np.zeros(len(counts), bool)
        stop = (tokens[:, :, None] == self.ids).any(2) & (np.arange(tokens.shape[1]) < counts[:, None])
        ended = stop.any(1)
        return np.where(ended, stop.argmax(1) + 1, counts), ended


def stop_string_criteria(strings: str | Sequence[str] | None, tokenizer: Any) -> list[Any]:
    """Return transformers' criterion for stop strings as a list, empty without any."""
    several: list[Any] = [strings] if isinstance(strings, str) else listed("stop_strings", strings, "strings")
    if wrong := [one for one in several if not isinstance(one, str) or not one]:
        raise SpecnbError(f"stop_strings have {wrong[0]!r}; expected strings that aren't empty, one or several")
    if not several:
        return []
    if tokenizer is None:
        raise SpecnbError(f"stop_strings are {strings!r}, but no tokenizer came; expected tokenizer=..., the target's")
    check_tokenizer("tokenizer", tokenizer, "the target's")
    return [theirs.StopStringCriteria(tokenizer=tokenizer, stop_strings=several)]
