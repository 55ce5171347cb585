"""Where drafts come from: a drafter proposes tokens with the q they were drawn from, and can roll back.

A drafter is anything with `start(batch, chooser, gamma)`, which returns the state of one run:
`propose(batch, limits) -> Proposal`, `rollback(lengths)` after each round, `keep(index)` when requests leave
the batch, and `calls`. The drafter itself holds no state, so one may serve several runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch

from specnb.decoding.cache import CachedModel
from specnb.decoding.choosing import Chooser, Proposal
from specnb.decoding.support import check_model
from specnb.sampling import Sampling

if TYPE_CHECKING:
    from specnb.decoding.batch import Batch


class DraftRun(Protocol):
    """The state of one drafter in one run."""

    @property
    def calls(self) -> int:
        """Forwards so far."""
        ...

    def propose(self, batch: Batch, limits: np.ndarray) -> Proposal:
        """Draft up to limits[r] tokens for each running row, as many as the largest limit for some."""
        ...

    def rollback(self, lengths: np.ndarray) -> None:
        """Forget everything from position lengths[r] on."""
        ...

    def keep(self, index: np.ndarray) -> None:
        """Go on with these rows of the rows that run."""
        ...


class Drafter(Protocol):
    """What `generate` asks of a drafter."""

    def start(self, batch: Batch, chooser: Chooser, gamma: int) -> DraftRun:
        """Return a fresh state for these requests, or raise `SpecnbError` if it can't serve them."""
        ...


@dataclass(frozen=True)
class ModelDrafter:
    """A smaller model drafts, token by token.

    model: a decoder-only transformers model with the target's token ids; its vocabulary may be padded
    differently, and it may lie on another device.
    sampling: how it draws; None is the target's sampling. Any is lossless: q is what was drawn from.
    """

    model: Any
    sampling: Sampling | None = None

    def start(self, batch: Batch, chooser: Chooser, gamma: int) -> DraftRun:
        """Return a fresh cache for these requests."""
        check_model("draft", self.model, batch.size)
        return ModelRun(self.model, batch, chooser.with_sampling(self.sampling), gamma)


class ModelRun:
    """A drafting model in one run: its cache and its rows q."""

    def __init__(self, model: Any, batch: Batch, chooser: Chooser, gamma: int) -> None:
        self.cached = CachedModel(model, len(batch.rows), batch.size)
        self.chooser = chooser
        self.gamma = gamma
        self.q: Any = None

    @property
    def calls(self) -> int:
        """Forwards so far."""
        return self.cached.calls

    def propose(self, batch: Batch, limits: np.ndarray) -> Proposal:
        """Draw each draft from the model's next row, feeding it the draft before."""
        chooser, lengths, G = self.chooser, batch.live_lengths, int(limits.max())
        if G == 0:
            return chooser.nothing()
        fed = torch.from_numpy(batch.since(self.cached.seen))
        drafted = []
        for i in range(G):
            probs = chooser.probabilities(self.cached.logits(fed, lengths + i, keep=1))[:, 0]
            self._rows_for(probs)[: len(lengths), i] = probs
            drafted.append(chooser.tensor(chooser.draw(probs, lengths, i)))
            fed = drafted[-1][:, None]
        return Proposal(chooser.array(torch.stack(drafted, 1)), self.q[: len(lengths), :G], limits)

    def _rows_for(self, probs: Any) -> Any:
        """Return room for q [B, gamma, V], allocated once."""
        if self.q is None:
            shape = (len(probs), self.gamma, probs.shape[1])
            self.q = probs.new_empty(shape) if torch.is_tensor(probs) else np.empty(shape, probs.dtype)
        return self.q

    def rollback(self, lengths: np.ndarray) -> None:
        """Forget what was rejected; the last draft was never fed, so an accepted block leaves two to feed."""
        self.cached.rollback(lengths)

    def keep(self, index: np.ndarray) -> None:
        """Drop the rows that left."""
        self.cached.keep(index)
        self.chooser.keep(index)


@dataclass
class NoDrafts:
    """Plain decoding: every round is one token of p."""

    chooser: Chooser
    calls: int = 0

    def propose(self, batch: Batch, limits: np.ndarray) -> Proposal:
        """Propose nothing."""
        return self.chooser.nothing()

    def rollback(self, lengths: np.ndarray) -> None:
        """Forget nothing."""

    def keep(self, index: np.ndarray) -> None:
        """Keep nothing: the loop tells the chooser."""
