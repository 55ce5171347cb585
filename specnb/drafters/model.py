"""A smaller model drafts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from specnb.decoding.cache import CachedModel
from specnb.decoding.support import check_kind, check_model
from specnb.drafters.drawing import Path
from specnb.sampling import Sampling, sampling_or_default

if TYPE_CHECKING:
    from specnb.decoding.batch import Batch
    from specnb.decoding.choosing import Chooser, Proposal
    from specnb.drafters.protocol import DraftRun


@dataclass(frozen=True)
class ModelDrafter:
    """A smaller model drafts, token by token.

    model: a decoder-only transformers model with the target's token ids; its vocabulary may be padded
    differently, and it may lie on another device.
    sampling: how it draws; None is the target's sampling. Any is lossless: q is what was drawn from.
    """

    model: Any
    sampling: Sampling | None = None

    def __post_init__(self) -> None:
        check_kind("draft", self.model)
        sampling_or_default(self.sampling)

    def start(self, batch: Batch, chooser: Chooser, gamma: int, target: CachedModel) -> DraftRun:
        """Return a fresh cache for these requests."""
        check_model("draft", self.model, batch.size)
        return ModelRun(CachedModel(self.model, len(batch.rows), batch.size), chooser, self.sampling, gamma)


class ModelRun:
    """A drafting model in one run: its cache and its rows q."""

    def __init__(self, cached: CachedModel, chooser: Chooser, sampling: Sampling | None, gamma: int) -> None:
        self.cached = cached
        self.path = Path(chooser.with_sampling(sampling), gamma)

    @property
    def calls(self) -> int:
        """Forwards so far."""
        return self.cached.calls

    def propose(self, batch: Batch, limits: np.ndarray) -> Proposal:
        """Draw each draft from the model's next row, feeding it the draft before."""
        lengths = batch.live_lengths

        def logits(i: int, last: torch.Tensor | None) -> torch.Tensor:
            fed = torch.from_numpy(batch.since(self.cached.seen)) if last is None else last[:, None]
            return self.cached.logits(fed, lengths + i, keep=1)[:, 0]

        return self.path.draw(lengths, limits, logits)

    def rollback(self, lengths: np.ndarray) -> None:
        """Forget what was rejected; the last draft was never fed, so an accepted block leaves two to feed."""
        self.cached.rollback(lengths)

    def keep(self, index: np.ndarray) -> None:
        """Drop the rows that left."""
        self.cached.keep(index)
        self.path.keep(index)
