"""A target and a draft on one chip: c, v, speedup, the best γ and what fits in memory, all predicted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from specnb.errors import SpecnbError
from specnb.roofline.chips import Chip
from specnb.roofline.shapes import BF16, ModelShape, Precision, Work, at_least

USABLE = 0.9
"""The share of memory that weights and caches may fill; the rest is for activations, workspaces and the runtime."""


@dataclass(frozen=True)
class Speculation:
    """A target and its draft, both on one chip in one precision, with `context` tokens per request in both caches.

    Speedups are relative to plain decoding of the same batch. Batches, γ and α may be arrays that broadcast.
    """

    chip: Chip
    target: ModelShape
    draft: ModelShape
    context: Any = 1024
    precision: Precision = BF16

    def draft_cost(self, batch: Any) -> Any:
        """Predict c: the time of one draft token per request over that of one target token."""
        draft, target = (
            self.chip.seconds(shape.forward(batch, 1, self.context, self.precision), self.precision)
            for shape in (self.draft, self.target)
        )
        return draft / target

    def verification_cost(self, batch: Any, gamma: Any) -> Any:
        """Predict v: the time to verify γ drafts per request over that of one target token."""
        return self.chip.verification_cost(batch, gamma, self.target, self.context, self.precision)

    def step(self, batch: Any, gamma: Any) -> dict[str, Work]:
        """Count the work of a step by its terms: the target's weights, activations and cache, and γ draft forwards.

        The draft's cache grows by less than γ tokens in a step, which isn't counted.
        """
        at_least("gamma", gamma, 0)
        verification = self.target.forward(batch, gamma + 1, self.context, self.precision)
        drafting = gamma * self.draft.forward(batch, 1, self.context, self.precision).total
        return vars(verification) | {"draft": drafting}

    def speedup(self, alpha: Any, batch: Any, gamma: Any) -> Any:
        """Predict tokens per second over those of plain decoding of the same batch, by `specnb.theory.speedup`."""
        from specnb import theory

        return theory.speedup(alpha, gamma, self.draft_cost(batch), self.verification_cost(batch, gamma))

    def best_gamma(self, alpha: Any, batch: Any, max_gamma: int = 16) -> tuple[Any, Any]:
        """Predict the best γ from 0 (don't draft) to max_gamma, and its speedup; v depends on γ here.

        Returns
        -------
        gamma, speedup : ints and floats, of the shape to which alpha, batch and the context broadcast.
        """
        at_least("max_gamma", max_gamma, 0)
        shape = np.broadcast_shapes(np.shape(alpha), np.shape(batch), np.shape(self.context))
        gammas = np.arange(max_gamma + 1).reshape(-1, *(1 for _ in shape))
        speedups = self.speedup(alpha, np.asarray(batch), gammas)
        return speedups.argmax(0), speedups.max(0)

    def memory(self, batch: Any, gamma: Any) -> dict[str, Any]:
        """Return the bytes of both models and both caches, with room for the γ + 1 tokens of a step."""
        at_least("batch", batch, 1)
        at_least("gamma", gamma, 0)
        names = ("target", "draft")
        shapes = dict(zip(names, (self.target, self.draft), strict=True))
        tokens = batch * (self.context + gamma + 1)
        weights = {f"{name} weights": shape.parameters * self.precision.weight_bytes for name, shape in shapes.items()}
        return weights | {f"{name} cache": shape.cache_size(self.precision) * tokens for name, shape in shapes.items()}

    def fits(self, batch: Any, gamma: Any, usable: float = USABLE) -> Any:
        """Tell whether the models and caches of this batch fit in the usable share of the chip's memory."""
        return sum(self.memory(batch, gamma).values()) <= self._usable(usable)

    def largest_batch(self, gamma: Any, usable: float = USABLE) -> Any:
        """Return the largest batch that fits; 0 if the models alone are too large."""
        one = self.memory(1, gamma)
        weights = one["target weights"] + one["draft weights"]
        caches = one["target cache"] + one["draft cache"]
        batch = np.maximum(0, (self._usable(usable) - weights) // caches).astype(int)
        return batch if batch.ndim else int(batch)

    def _usable(self, share: float) -> float:
        if not 0 < share <= 1:
            raise SpecnbError(f"usable is {share!r}; expected a share of the memory, 0 < usable <= 1")
        if self.chip.memory is None:
            raise SpecnbError(f"{self.chip.name} has no memory of its own; expected a Chip with memory, in bytes")
        return share * self.chip.memory
