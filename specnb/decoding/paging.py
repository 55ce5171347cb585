"""A run's cache as an engine would page it: block tables, logical lengths, and rejection as a move of integers.

It is for teaching and for tests. Attention here reads whole rows, so the blocks of a row are gathered before each
forward, which an engine's kernel does while it reads.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers.cache_utils import Cache

from specnb.decoding.cache import CachedModel, RowLayer, Step

NULL = 0
"""The block that stands where a table has none, and takes what no row wants: padding, drafts beyond a budget."""


class Pages:
    """Which blocks hold which tokens: nothing but integers.

    table: int64 [R, n], the blocks of each row in order, `NULL` behind its end. lengths: int64 [R], tokens that count.
    free: blocks that nobody has. peak: the most blocks in use at once.

    Examples
    --------
    >>> pages = Pages(rows=2, size=8, block_size=4)
    >>> pages.reserve(np.array([6, 3]))
    >>> pages.table
    array([[1, 2],
           [3, 0]])
    >>> pages.rollback(np.array([4, 2]))  # the first row gives a block back, the second keeps its own
    >>> pages.table, pages.lengths, pages.free[-1]
    (array([[1, 0],
           [3, 0]]), array([4, 2]), 2)
    """

    def __init__(self, rows: int, size: int, block_size: int) -> None:
        self.block_size = block_size
        each = -(-size // block_size)
        self.table = np.full((rows, each), NULL)
        self.lengths = np.zeros(rows, np.int64)
        self.free = list(range(rows * each, NULL, -1))
        self.peak = 0

    @property
    def blocks(self) -> int:
        """All blocks, `NULL` among them."""
        return len(self.free) + self.used + 1

    @property
    def used(self) -> int:
        """Blocks that rows have."""
        return int((self.table != NULL).sum())

    def reserve(self, lengths: np.ndarray) -> None:
        """Let each row hold so many tokens."""
        for row, needed in enumerate(-(-lengths // self.block_size)):
            for i in range(min(int(needed), self.table.shape[1])):
                if self.table[row, i] == NULL:
                    self.table[row, i] = self.free.pop()
        self.lengths = lengths
        self.peak = max(self.peak, self.used)

    def rollback(self, lengths: np.ndarray) -> None:
        """Forget every token from position lengths[b] on; blocks that are empty then are free."""
        self.lengths = np.minimum(self.lengths, lengths)
        beyond = np.arange(self.table.shape[1]) >= -(-self.lengths // self.block_size)[:, None]
        self._give_back(beyond)

    def keep(self, index: np.ndarray) -> None:
        """Keep only these rows; the others' blocks are free."""
        gone = ~np.isin(np.arange(len(self.table)), index)
        self._give_back(np.broadcast_to(gone[:, None], self.table.shape))
        self.table, self.lengths = self.table[index], self.lengths[index]

    def places(self, slots: np.ndarray) -> np.ndarray:
        """Return where in the pool each row's slots [R, k] lie."""
        block = np.take_along_axis(self.table, slots // self.block_size, 1)
        return block * self.block_size + slots % self.block_size

    def _give_back(self, which: np.ndarray) -> None:
        gone = which & (self.table != NULL)
        self.free += sorted(self.table[gone].tolist(), reverse=True)
        self.table[gone] = NULL


class PageStep(Step):
    """Where the forward that is running writes and reads in the pool, shared by all layers."""

    blocks: int = 0  # slots of the pool, all blocks together
    written: Any = None  # int64 [R, k], where the fed tokens go
    read: Any = None  # int64 [R, end], where each row's tokens are


class PageLayer(RowLayer):
    """Keys and values of one attention layer in a pool of blocks, [slots, heads, width], allocated once."""

    step: PageStep

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Allocate the pool, as zeros: a masked slot must hold something finite."""
        self.keys, self.values = (
            states.new_zeros(self.step.blocks, states.shape[1], states.shape[3])
            for states in (key_states, value_states)
        )
        self.is_initialized = True

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        """Write the new states [R, heads, k, width] at their places; return each row's, gathered."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        pools: Any = (self.keys, self.values)
        for pool, states in zip(pools, (key_states, value_states), strict=True):
            pool[self.step.written] = states.transpose(1, 2)
        return tuple(pool[self.step.read].transpose(1, 2) for pool in pools)

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Move nothing: which rows are left is the tables' matter."""


class PagedModel(CachedModel):
    """A `CachedModel` whose keys and values lie in pages."""

    def __init__(self, model: Any, rows: int, size: int, block_size: int) -> None:
        super().__init__(model, rows, size)
        self.step = PageStep(size)
        self.pages = Pages(rows, size, block_size)
        self.step.blocks = self.pages.blocks * block_size
        layer: Any = functools.partial(PageLayer, self.step)
        self.cache = Cache(layer_class_to_replicate=layer)

    def rollback(self, lengths: np.ndarray) -> None:
        """Forget every cached token from position lengths[b] on."""
        super().rollback(lengths)
        self.pages.rollback(lengths)

    def keep(self, rows: np.ndarray) -> None:
        """Keep only these rows of the batch, in this order."""
        super().keep(rows)
        self.pages.keep(rows)

    def _place(self, width: int, ends: np.ndarray) -> tuple[Any, torch.Tensor]:
        mask, positions = super()._place(width, ends)
        R, end = len(ends), self.step.end
        self.pages.reserve(np.minimum(ends, self.step.size))
        fed = self._fed(positions, R)
        places = self.pages.places(fed)
        wasted = fed == self.step.size - 1
        self.step.written = self._index(np.where(wasted, NULL, places))
        self.step.read = self._index(self.pages.places(np.broadcast_to(np.arange(end), (R, end))))
        return mask, positions

    def _fed(self, positions: torch.Tensor, rows: int) -> np.ndarray:
        """Return the slots of the fed tokens [R, k] as the per-row cache has them; the last slot is for waste."""
        slots = positions if self.step.slots is None else self.step.slots[1]
        return np.broadcast_to(slots.cpu().numpy(), (rows, slots.shape[1]))

    def _index(self, places: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(places)).to(self.device)


class Moved(TorchDispatchMode):
    """Counts the bytes of every tensor that any operation of PyTorch makes or writes meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation and add what came out."""
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(tensor, torch.Tensor):
                self.bytes += tensor.numel() * tensor.element_size()
        return out
