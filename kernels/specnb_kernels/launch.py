"""What one launch takes: how rows lie in memory and are cut, the compiler's options, arrival counters."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
import triton

from specnb_kernels.masses import TILE

WARPS = 4
THREADS = 32 * WARPS
STRETCH = 16  # how much larger a tile is in the interpreter, whose time goes by operations, not by elements
MAX_SPLITS = 64
MIN_SPLITS = 16  # fewer would make the second look at one split a large part of all reads
PROGRAMS = 4096  # enough to keep every multiprocessor of a large GPU busy
SINGLE_WARPS = 32768  # the same of programs of one warp
MAX_SINGLE_SPLITS = 128

_WORKSPACES: dict[tuple, torch.Tensor] = {}


class Launch(NamedTuple):
    """One launch: a kernel, its grid, its arguments by name and the compiler's options."""

    kernel: Any
    grid: tuple[int, ...]
    arguments: dict[str, Any]
    options: dict[str, Any]

    def run(self) -> None:
        """Run it, unless there is nothing to do."""
        if math.prod(self.grid) > 0:
            self.kernel[self.grid](**self.arguments, **self.options)


def default_splits(rows: int, tiles: int) -> int:
    """Return how many programs share a row of so many tiles: a power of two, so that the ticket may wrap around.

    Each has two tiles or more: what it reads before it streams is then a small part of all.
    """
    wanted = max(MIN_SPLITS, PROGRAMS // max(rows, 1))
    return min(MAX_SPLITS, triton.next_power_of_2(triton.cdiv(tiles, 2)), 1 << (wanted.bit_length() - 1))


def arrivals(rows: int, splits: int, device: torch.device) -> torch.Tensor:
    """Return the rows' arrival counters, int32 multiples of `splits`: a count returns to one with every launch."""
    return kept(rows, splits, device)


def kept(count: int, use: int | str, device: torch.device, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    """Return memory that is 0 when new and kept per (device, stream, use), for what a launch need not clear.

    A captured launch gets its own, cleared by the graph: graphs captured on one stream may be replayed side by side. So
    does a launch on the CPU, which an exception can stop half way.
    """
    if device.type != "cuda" or torch.cuda.is_current_stream_capturing():
        return torch.zeros(count, dtype=dtype, device=device)
    key = (device, torch.cuda.current_stream(device).cuda_stream, use)
    if key not in _WORKSPACES or _WORKSPACES[key].numel() < count:
        _WORKSPACES[key] = torch.zeros(triton.next_power_of_2(count), dtype=dtype, device=device)
    return _WORKSPACES[key]


def alignment(rows: torch.Tensor | None) -> int:
    """Return how many elements 16 bytes hold if every row starts on such a boundary with unit stride, else 1."""
    if rows is None:
        return 1
    per_vector = 16 // rows.element_size()
    unit = rows.stride(2) == 1 and rows.data_ptr() % 16 == 0
    return per_vector if unit and rows.stride(0) % per_vector == rows.stride(1) % per_vector == 0 else 1


def register_cap(p: torch.Tensor, q: torch.Tensor | None, scaled: bool, formed: bool) -> int | None:
    """Return how many registers a thread may have; scaled is kernel A for the rule block, which needs eight more.

    formed is any kernel that reads logits; it needs sixteen.

    Found by compiling: with these no Triton from 3.6 to 3.9 spills, where ptxas, left alone, spills one or two to
    round their number down. Strided ids need more than a cap that is good for the rest; 255 is as many as there are.
    """
    rows = [p] if q is None else [p, q]
    if any(x.stride(2) != 1 for x in rows):
        return 255 if scaled or formed else None
    narrow, wide = min(x.element_size() for x in rows), max(x.element_size() for x in rows)
    return (64 if narrow > 2 else 96 if wide > 4 else 80) + 8 * scaled + 16 * formed


def layout(p: torch.Tensor, q: torch.Tensor | None, rows: int, stretch: int, splits: int | None) -> dict[str, Any]:
    """Return the arguments that tell how rows of p and q lie in memory and are cut, where so many will be streamed."""
    if q is not None and q.shape[2] == 0:
        q = q.new_zeros(*q.shape[:2], 1)  # width 0 is how the kernel knows that there is no q
    q_width = 0 if q is None else q.shape[2]
    vocabulary = max(q_width, p.shape[2])
    vector = 16 // min(p.element_size(), 8 if q is None else q.element_size())
    tile = vector * THREADS * stretch  # one 16-byte load per thread, row and step, of the narrower type
    tiles = triton.cdiv(vocabulary, tile)
    splits = splits or default_splits(rows, tiles)
    return {
        "q": q, "p": p, "V": vocabulary, "p_width": p.shape[2], "q_width": q_width,
        "p_row": p.stride(0), "p_pos": p.stride(1), "p_id": p.stride(2),
        "q_row": 0 if q is None else q.stride(0), "q_pos": 0 if q is None else q.stride(1),
        "q_id": 1 if q is None else q.stride(2),
        "splits": splits, "tiles_per_split": triton.cdiv(tiles, splits),
        "TILE": tile, "VECTOR": vector, "P_ALIGN": alignment(p), "Q_ALIGN": alignment(q),
    }  # fmt: skip


def tile_layout(y: torch.Tensor | None, z: torch.Tensor, stretch: int, splits: int | None) -> dict[str, Any]:
    """Return how the kernels of one warp per program cut the rows of logits y and z into tiles of the contract."""
    rows = z.shape[0] * (z.shape[1] + (0 if y is None else y.shape[1]))
    tiles = triton.cdiv(max(z.shape[2], 0 if y is None else y.shape[2]), TILE.value)
    groups = triton.cdiv(tiles, stretch)
    wanted = max(1, SINGLE_WARPS // max(rows, 1))
    splits = splits or min(MAX_SINGLE_SPLITS, triton.next_power_of_2(groups), 1 << (wanted.bit_length() - 1))
    return {
        "y": y, "z": z, "y_width": 0 if y is None else y.shape[2], "z_width": z.shape[2],
        "z_row": z.stride(0), "z_pos": z.stride(1), "z_id": z.stride(2),
        "y_row": 0 if y is None else y.stride(0), "y_pos": 0 if y is None else y.stride(1),
        "y_id": 1 if y is None else y.stride(2),
        "tile_row": tiles, "splits": splits, "groups_per_split": triton.cdiv(groups, splits),
        "TILES": stretch, "Y_ALIGN": alignment(y), "Z_ALIGN": alignment(z),
    }  # fmt: skip


def options(p: torch.Tensor, q: torch.Tensor | None, scaled: bool = False, formed: bool = False) -> dict[str, Any]:
    """Return how a kernel that streams rows of p and q is compiled.

    A fused multiply-add would round once where the contract rounds twice. One stage: the loads of a streaming loop
    overlap across programs, and a copy through shared memory would only add to them.
    """
    registers = register_cap(p, q, scaled, formed)
    return {"num_warps": WARPS, "num_stages": 1, "enable_fp_fusion": False, "maxnreg": registers}
