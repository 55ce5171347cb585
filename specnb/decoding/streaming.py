"""Tokens as they come, to anything with transformers' streamer interface: one streamer for each request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from specnb.decoding.arguments import check_methods
from specnb.errors import SpecnbError


class Streaming:
    """The streamers of a batch; rows emit at different times, so each has its own.

    A streamer gets `put(prompt)`, int64 [1, L], then `put(token)`, int64 [1], for each token once it is certain,
    and `end()` when its request ends, also if the run is interrupted or fails.
    """

    def __init__(self, streamers: Any, requests: int) -> None:
        several = isinstance(streamers, Sequence) and not isinstance(streamers, (str, bytes))
        self.streamers: list[Any] = list(streamers) if several else [] if streamers is None else [streamers]
        for one in self.streamers:
            check_methods("streamer", one, ("put", "end"), "an object with put and end, as transformers.TextStreamer")
        if streamers is not None and len(self.streamers) != requests:
            came = f"{len(self.streamers)} streamers" if several else "one streamer"
            raise SpecnbError(
                f"{came} came for {requests} requests, which emit at different times; expected a list of "
                f"{requests}, one streamer each"
            )
        self._open = set(range(len(self.streamers)))

    def begin(self, prompts: Sequence[np.ndarray]) -> None:
        """Put each prompt."""
        for streamer, prompt in zip(self.streamers, prompts, strict=bool(self.streamers)):
            streamer.put(torch.from_numpy(prompt.copy())[None])

    def put(self, rows: np.ndarray, tokens: np.ndarray, counts: np.ndarray) -> None:
        """Put the first counts[r] tokens of each running row, one by one."""
        if self.streamers:
            for row, emitted, count in zip(rows.tolist(), tokens, counts.tolist(), strict=True):
                for token in emitted[:count].tolist():
                    self.streamers[row].put(torch.tensor([token]))

    def end(self, rows: Any = None) -> None:
        """End these rows' streamers, or all that are still open."""
        for row in sorted(self._open) if rows is None else rows.tolist() if self.streamers else ():
            self._open.discard(row)
            self.streamers[row].end()
