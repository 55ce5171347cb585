"""What `generate` asks of a drafter, and the one that drafts nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

if TYPE_CHECKING:
    from specnb.decoding.batch import Batch
    from specnb.decoding.cache import CachedModel
    from specnb.decoding.choosing import Chooser, Proposal


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

    def start(self, batch: Batch, chooser: Chooser, gamma: int, target: CachedModel) -> DraftRun:
        """Return a fresh state for these requests, or raise `SpecnbError` if it can't serve them.

        target is the model to be decoded with its cache, for drafters that draw from it; they leave it as it is. One
        that continues the model's hidden states gets them by setting `target.states` to a `States`.
        """
        ...


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
