"""The hidden states of a model's last forward, for drafters that continue them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from specnb.errors import SpecnbError

HOOKS = threading.Lock()
"""Held while a hook comes or goes: PyTorch numbers hooks without one, and two with one number would be one."""

NOISE = 16
"""How far apart two products of the LM head may be, in units of the dtype's epsilon times the largest logit."""


class States:
    """What the model's LM head read in the last forward: the output of its base model, behind the final norm.

    A drafter sets `CachedModel.states` to one of these to be given them; others pay nothing. They are taken by a hook
    that is there only while the forward runs, so they cost no memory beside the last forward's own output. Runs in
    other threads, or inside this forward, may use the same model: the hook takes only what came with its own cache.

    values: [R, k, H] of the k columns that were fed, None before the first forward. ends: int64 [R], the position
    behind the last column of each row. Columns of padding or of rejected drafts hold what nobody should read.
    """

    def __init__(self) -> None:
        self.values: torch.Tensor | None = None
        self.ends = np.zeros(0, np.int64)

    @contextmanager
    def taken(self, model: Any, cache: Any, ends: np.ndarray) -> Iterator[None]:
        """Take the states of the forward inside with this cache, whose rows end at `ends`; hooks end as they were."""
        self.values, self.ends = None, ends

        def take(module: Any, arguments: tuple[Any, ...], named: dict[str, Any], output: Any) -> None:
            if any(value is cache for value in (*arguments, *named.values())):
                self.values = output[0]  # last_hidden_state, of a model output or a tuple

        with HOOKS:
            hook = model.base_model.register_forward_hook(take, with_kwargs=True)
        try:
            yield
        finally:
            with HOOKS:
                hook.remove()
        if self.values is None:
            raise SpecnbError(
                f"{type(model).__name__} has no base model that its forward calls with the cache; expected its states"
            )

    def check(self, model: Any, logits: torch.Tensor) -> None:
        """Raise `SpecnbError` unless the last columns of logits [R, k, V] are the LM head's of the states' own."""
        values: Any = self.values
        read, own = model.get_output_embeddings()(values[:, -logits.shape[1] :]).float(), logits.float()
        apart, largest = (read - own).abs().max(), own.abs().max()
        if apart > NOISE * torch.finfo(values.dtype).eps * largest:  # NaN is another error
            raise SpecnbError(
                f"the logits of {type(model).__name__} aren't its LM head's of the last state, but {float(apart):.3g} "
                "away: it scales or caps them, and heads would draft from another law; expected a target without that"
            )

    def at(self, positions: np.ndarray) -> torch.Tensor:
        """Return the state [R, H] of each row's token at a position that the last forward was fed, int64 [R]."""
        values: Any = self.values
        columns = torch.from_numpy(values.shape[1] - (self.ends - positions)).to(values.device)
        return values[torch.arange(len(values), device=values.device), columns]

    def keep(self, rows: np.ndarray) -> None:
        """Keep only these rows."""
        self.ends = self.ends[rows]
        if self.values is not None:
            self.values = self.values[torch.from_numpy(rows).to(self.values.device)]
