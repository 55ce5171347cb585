"""Processes that share one model by tensor parallelism, its ranks: they have to decode the same, token for token.

Each rank holds its part of the weights and, in its own cache, its own heads. Drafts, verdicts and texts are made by
every rank for itself, and come out alike because all of them have the same bits of every logit: a sum over ranks is
made once, piece by piece, and copied, and the arithmetic behind the logits is exact. The copying is what gloo and NCCL
do and not what they promise, and seeds or prompts may differ by mistake. So what hangs on it is compared: before each
forward what the ranks are about to feed, and their texts in the end.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import torch
from torch import distributed

from specnb.errors import SpecnbError


class Ranks:
    """The processes of one group, which call `agree` in step."""

    def __init__(self, group: Any, device: torch.device) -> None:
        self.group, self.device = group, device
        self.size = distributed.get_world_size(group)

    def agree(self, what: str, tokens: np.ndarray, lengths: np.ndarray) -> None:
        """Raise `SpecnbError` on every rank unless all came to the same place with the same arrays.

        what: the place, as said after "rank 0". tokens: int64 [R, k]. lengths: int64 [R]. It costs one exchange of
        eight bytes, whatever the shapes, so that ranks which differ in them don't wait for each other.
        """
        digest = hashlib.blake2b(repr((what, tokens.shape)).encode(), digest_size=8)
        for array in (tokens, lengths):
            digest.update(np.ascontiguousarray(array, np.int64).tobytes())
        mine = torch.from_numpy(np.frombuffer(digest.digest(), np.int64).copy()).to(self.device)
        everyone = [torch.empty_like(mine) for _ in range(self.size)]
        distributed.all_gather(everyone, mine, group=self.group)
        if len(set(torch.cat(everyone).tolist())) > 1:
            raise SpecnbError(self._difference(what, tokens, lengths))

    def _difference(self, *mine: Any) -> str:
        """Say where the first rank that differs from rank 0 does."""
        found: list[Any] = [None] * self.size
        distributed.all_gather_object(found, mine, group=self.group)
        first = found[0]
        rank = next((r for r, other in enumerate(found) if _place(first, other)), 0)
        there, here = _place(found[rank], first), _place(first, found[rank])
        return (
            f"the ranks of a model that is split by tensor parallelism differ: rank 0 {here}, and rank {rank} {there}; "
            "expected the same prompts, seed and settings on all of them, and the same draft: do their devices and "
            "libraries differ?"
        )


def _place(mine: Any, other: Any) -> str:
    """Say what `mine` is where another rank's (what, tokens, lengths) begins to differ, "" if it doesn't."""
    (what, tokens, lengths), (other_what, other_tokens, other_lengths) = mine, other
    if what != other_what or tokens.shape != other_tokens.shape:
        return f"{what} {list(tokens.shape)} rows and columns"
    if (tokens != other_tokens).any():
        row, column = (int(i) for i in np.argwhere(tokens != other_tokens)[0])
        return f"{what} {tokens[row, column]} in row {row}, column {column}"
    if (lengths != other_lengths).any():
        row = int(np.flatnonzero(lengths != other_lengths)[0])
        return f"{what} row {row} up to position {lengths[row]}"
    return ""


def ranks_of(model: Any) -> Ranks | None:
    """Return the processes that a model's tensors are split over, or None if this one has it whole.

    A mesh with named dimensions counts by its dimension "tp": along others ranks have requests of their own.
    """
    meshes = (getattr(weight, "device_mesh", None) for weight in model.parameters())
    mesh = next((mesh for mesh in meshes if mesh is not None), None)
    names = None if mesh is None else mesh.mesh_dim_names
    if mesh is None or mesh.size() == 1 or (names and "tp" not in names) or (not names and mesh.ndim > 1):
        return None
    return Ranks(mesh.get_group("tp" if names else 0), model.device)
