"""Heads on the target's own hidden states draft."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from specnb.decoding.states import States
from specnb.drafters.drawing import Path as DraftPath
from specnb.drafters.heads_modules import KINDS, Heads, check_heads, read_heads
from specnb.errors import SpecnbError
from specnb.pair import data_path
from specnb.sampling import Sampling, sampling_or_default

if TYPE_CHECKING:
    from specnb.decoding.batch import Batch
    from specnb.decoding.cache import CachedModel
    from specnb.decoding.choosing import Chooser, Proposal
    from specnb.drafters.protocol import DraftRun


@dataclass(frozen=True)
class HeadsDrafter:
    """Small heads draft from the hidden state that verification left, with the target's embedding and LM head.

    A draft costs a few matrix products, no cache and no prompt. A request's first round drafts nothing: there is no
    state before the target has read the prompt. The target isn't changed, and whatever the heads' weights are, the
    law of the output is the target's. One that scales or caps what its LM head gives is refused.

    heads: `SequentialHead` or `IndependentHeads`; their weights are cast to the target's dtype and device in a copy.
    sampling: how drafts are drawn; None is the target's.

    >>> HeadsDrafter.bundled("independent").heads.most
    4
    """

    heads: Heads
    sampling: Sampling | None = None

    def __post_init__(self) -> None:
        check_heads(self.heads)
        sampling_or_default(self.sampling)

    @classmethod
    def load(cls, path: str | Path, sampling: Sampling | None = None) -> HeadsDrafter:
        """Return a drafter with the heads of a file, as `save_heads` writes one."""
        return cls(read_heads(path), sampling)

    @classmethod
    def bundled(cls, kind: str = "sequential", sampling: Sampling | None = None) -> HeadsDrafter:
        """Return a drafter with heads that were trained for the target of `specnb.load_pair`.

        kind: "sequential", one module in the manner of DeepSeek-V3, applied again for each draft; or "independent",
        one head per position in the manner of Medusa.
        """
        if not isinstance(kind, str) or kind not in KINDS:
            raise SpecnbError(f"kind is {kind!r}; expected one of {', '.join(map(repr, KINDS))}")
        return cls.load(data_path(f"heads/{kind}.safetensors"), sampling)

    def start(self, batch: Batch, chooser: Chooser, gamma: int, target: CachedModel) -> DraftRun:
        """Return a run that reads the target's states from now on."""
        read = target.model.get_output_embeddings()
        width = getattr(read, "in_features", None)
        if width != self.heads.width or target.model.base_model is target.model:
            raise SpecnbError(
                f"the heads continue states of width {self.heads.width}, and {type(target.model).__name__} has an LM "
                f"head of width {width}; expected the model that they were trained for"
            )
        return HeadsRun(self, target, chooser, gamma)


class HeadsRun:
    """Heads in one run: they keep nothing but what the target's last forward left."""

    def __init__(self, drafter: HeadsDrafter, target: CachedModel, chooser: Chooser, gamma: int) -> None:
        self.heads = fitted(drafter.heads, target.model)
        self.target, self.calls = target, 0
        self.embed, self.read = target.model.get_input_embeddings(), target.model.get_output_embeddings()
        self.states = target.states = States()
        self.path = DraftPath(chooser.with_sampling(drafter.sampling), gamma)

    def propose(self, batch: Batch, limits: np.ndarray) -> Proposal:
        """Draw drafts behind the state of each row's last cached token and the token that follows it."""
        limits = np.minimum(limits, self.heads.most)
        drafts = int(limits.max(initial=0))
        if self.states.values is None or not drafts:
            return self.path.chooser.nothing()
        state = self.states.at(self.target.seen - 1)
        last = torch.from_numpy(batch.since(self.target.seen)[:, -1]).to(state.device)
        rows = self.heads.rows(state, last, self._embedded, self.read, drafts)
        self.calls += self.heads.forwards(drafts)
        return self.path.draw(batch.live_lengths, limits, rows)

    def rollback(self, lengths: np.ndarray) -> None:
        """Forget nothing: the state of the last token that stays is taken when it is needed."""

    def keep(self, index: np.ndarray) -> None:
        """Drop the rows that left."""
        self.path.keep(index)

    def _embedded(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the embeddings of drafts; ids without one are read as the nearest, as the target's cache does."""
        return self.embed(tokens.to(self.target.device).clamp(0, self.target.last_id))


def fitted(heads: Heads, model: Any) -> Heads:
    """Return heads in the dtype and on the device of a model: themselves, or a copy."""
    weight = next(heads.parameters())
    same = (weight.device, weight.dtype) == (model.device, model.dtype)
    return heads if same else copy.deepcopy(heads).to(model.device, model.dtype)
