"""The target's own first layers draft, on the target's own cache."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import nn

from specnb.decoding.arguments import check_count
from specnb.decoding.cache import CachedModel
from specnb.drafters.model import ModelRun
from specnb.errors import SpecnbError
from specnb.sampling import Sampling, sampling_or_default

if TYPE_CHECKING:
    from specnb.decoding.batch import Batch
    from specnb.decoding.choosing import Chooser, Proposal
    from specnb.drafters.protocol import DraftRun


@dataclass(frozen=True)
class EarlyExitDrafter:
    """The target's first layers with its norm and head draft.

    No layer's keys and values depend on a later layer, so those that verification wrote are exactly those that
    drafting needs: both use one cache, and a draft costs no memory and no prompt of its own after the first round.
    What drafting writes there, verification overwrites. The target isn't changed.

    layers: how many of the target's layers, 1 … all. sampling: how drafts are drawn; None is the target's.

    Source: Elhoushi et al., "LayerSkip: Enabling Early Exit Inference and Self-Speculative Decoding", ACL 2024
    (there the target is trained for it; any target is lossless here, and an untrained one is accepted less).
    """

    layers: int
    sampling: Sampling | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "layers", check_count("layers", self.layers, least=1))
        sampling_or_default(self.sampling)

    def start(self, batch: Batch, chooser: Chooser, gamma: int, target: CachedModel) -> DraftRun:
        """Return a run on the target's cache."""
        return EarlyExitRun(SharedCache(first_layers(target.model, self.layers), target), chooser, self.sampling, gamma)


class SharedCache(CachedModel):
    """A model of a target's first layers that reads and writes the target's own cache."""

    def __init__(self, model: Any, target: CachedModel) -> None:
        super().__init__(model, len(target.seen), target.step.size)
        self.target, self.cache, self.step = target, target.cache, target.step

    def keep(self, rows: np.ndarray) -> None:
        """Forget which rows left: the cache itself is the target's to cut."""
        self.seen = self.seen[rows]


class EarlyExitRun(ModelRun):
    """Early exit in one run."""

    cached: SharedCache

    def propose(self, batch: Batch, limits: np.ndarray) -> Proposal:
        """Draw drafts, beginning with what the target has cached."""
        self.cached.seen = self.cached.target.seen
        return super().propose(batch, limits)


def first_layers(model: Any, count: int) -> Any:
    """Return a model that shares all modules with another one but ends after its first layers, count >= 1.

    Raises
    ------
    SpecnbError : a count above all, or a model whose layers aren't one list.
    """
    total = model.config.get_text_config(decoder=True).num_hidden_layers
    if count > total:
        raise SpecnbError(f"layers is {count!r}; expected 1 … {total}, the layers of {type(model).__name__}")
    lists = [name for name, m in model.named_modules() if isinstance(m, nn.ModuleList) and len(m) == total]
    if len(lists) != 1 or getattr(model.config.get_text_config(decoder=True), "num_kv_shared_layers", 0):
        raise SpecnbError(
            f"{type(model).__name__} has {len(lists)} lists of {total} layers, or layers that share keys and values; "
            "expected one list whose first ones can be run alone"
        )
    return _with(model, lists[0].split("."), lambda layers: _first(layers, count))


def _first(layers: nn.ModuleList, count: int) -> nn.ModuleList:
    first = layers[:count]
    first.training = layers.training  # a new list believes that it is being trained
    return first


def _with(module: Any, path: list[str], change: Any) -> Any:
    """Return a shallow copy of a module in which the submodule at a path is changed, and nothing else copied."""
    if not path:
        return change(module)
    changed = copy.copy(module)
    changed._modules = dict(module._modules) | {path[0]: _with(module._modules[path[0]], path[1:], change)}
    return changed
