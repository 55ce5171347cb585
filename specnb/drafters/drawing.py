"""Drawing a path token by token from rows of logits: what every drafter with a soft q does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from specnb.decoding.choosing import Chooser, Proposal


class Path:
    """Draws the drafts of each round and keeps room for their rows q [R, gamma, V], allocated once."""

    def __init__(self, chooser: Chooser, gamma: int) -> None:
        self.chooser, self.gamma = chooser, gamma
        self.q: Any = None

    def draw(
        self, lengths: np.ndarray, limits: np.ndarray, logits: Callable[[int, torch.Tensor | None], torch.Tensor]
    ) -> Proposal:
        """Return drafts for steps that start at lengths [R], each drawn from the row that the ones before it give.

        logits(i, last): the logits [R, V] of draft i; last is draft i − 1, int64 [R], None for the first.
        """
        chooser, G = self.chooser, int(limits.max(initial=0))
        if G == 0:
            return chooser.nothing()
        drafted: list[torch.Tensor] = []
        for i in range(G):
            row = logits(i, drafted[-1] if drafted else None)
            probs = chooser.probabilities(row[:, None])[:, 0]
            self._room(probs)[: len(lengths), i] = probs
            drafted.append(chooser.tensor(chooser.draw(probs, lengths, i)))
        return Proposal(chooser.array(torch.stack(drafted, 1)), self.q[: len(lengths), :G], limits)

    def keep(self, index: np.ndarray) -> None:
        """Drop the rows that left."""
        self.chooser.keep(index)

    def _room(self, probs: Any) -> Any:
        if self.q is None:
            shape = (len(probs), self.gamma, probs.shape[1])
            self.q = probs.new_empty(shape) if torch.is_tensor(probs) else np.empty(shape, probs.dtype)
        return self.q
