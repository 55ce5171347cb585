"""Drawing a path token by token from rows of logits: what every drafter with a soft q does."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from specnb.decoding.choosing import Chooser, Proposal


class Path:
    """Draws the drafts of each round, gamma at most."""

    def __init__(self, chooser: Chooser, gamma: int) -> None:
        self.chooser, self.gamma = chooser, gamma

    def draw(
        self, lengths: np.ndarray, limits: np.ndarray, logits: Callable[[int, torch.Tensor | None], torch.Tensor]
    ) -> Proposal:
        """Return drafts for steps that start at lengths [R], each drawn from the row that the ones before it give.

        logits(i, last): the logits [R, V] of draft i; last is draft i − 1, int64 [R], None for the first.
        """
        chooser, G = self.chooser, int(limits.max(initial=0))
        if G == 0:
            return chooser.nothing()
        drafts: list[torch.Tensor] = []
        for i in range(G):
            row = logits(i, drafts[-1] if drafts else None)
            drafts.append(chooser.tensor(chooser.draft(row, lengths, i, self.gamma)))
        return Proposal(chooser.array(torch.stack(drafts, 1)), chooser.drafted(G), limits)

    def keep(self, index: np.ndarray) -> None:
        """Drop the rows that left."""
        self.chooser.keep(index)
