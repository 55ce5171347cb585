"""Which launches make rows of logits readable as probabilities: masses, and thresholds where filters are on."""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import torch

from specnb_kernels.filters import BUCKETS, DIGIT, STATE, thresholds_kernel
from specnb_kernels.launch import WARPS, Launch, arrivals, kept, tile_layout
from specnb_kernels.logits import FORM, MIN_P, TOPS
from specnb_kernels.masses import masses_kernel
from specnb_kernels.rules import drafts

COMPILER = {"num_warps": 1, "num_stages": 1, "enable_fp_fusion": False}  # a warp sums a tile without a barrier
SEARCH = COMPILER | {"num_warps": WARPS}
FILTERS = ("top_k", "top_p", "min_p")
LAUNCHES = itertools.count(1)  # each that may tell a rejection has a number of its own
UNUSED_BITS = {torch.bfloat16: 16, torch.float16: 12}  # of a float32, in whole digits


class Parameters(NamedTuple):
    """How one model's logits become probabilities, a value per row [B]; None is off, or that there are no logits."""

    temperature: torch.Tensor | None  # float64
    top_k: torch.Tensor | None  # int64; 0 is off
    top_p: torch.Tensor | None  # float64; 1 is off
    min_p: torch.Tensor | None  # float64; 0 is off


def forms(draft, y, z, lengths, onehot, y_how: Parameters, z_how: Parameters, stretch: int, splits: int | None,
          randomness: dict[str, Any] | None = None):  # fmt: skip
    """Return the launches that leave the forms of all rows of z [B, G + 1, V] and y, and what tells readers of them.

    randomness: that of a verdict which reads no row behind its first rejection; the last launch may then leave out
    those rows, and their forms are not defined. None: there is no such verdict.
    """
    rows = tile_layout(y, z, stretch, splits) | drafts(draft, lengths) | {"onehot": onehot}
    count = z.shape[1] + (0 if y is None else y.shape[1])
    shape, device, tiles = (len(z), count), z.device, rows["tile_row"]
    rows["arrivals"] = arrivals(len(z) * count, rows["splits"], device)
    rows["tops"] = torch.empty(*shape, tiles, dtype=torch.float32, device=device)
    rows["forms"] = torch.empty(*shape, FORM.value, dtype=torch.float32, device=device)
    grid, both = (len(z), rows["splits"], count), (y_how, z_how)
    on = [any(getattr(how, name) is not None for how in both) for name in FILTERS]
    filtered = MIN_P.value if on[2] else TOPS.value if any(on) else 0

    left = rows | {"sums": torch.empty(*shape, tiles, dtype=torch.int64, device=device)}
    left |= {"y_temperature": y_how.temperature, "z_temperature": z_how.temperature}
    left |= {"y_min_p": y_how.min_p, "z_min_p": z_how.min_p}
    whole = left | dict.fromkeys(("seeds", "positions", "uniforms", "known", "met"))
    whole |= {"launch": 0, "seed": 0, "position": 0}
    last = whole if randomness is None else left | early(draft, randomness)
    steps = [Launch(masses_kernel, grid, (whole if filtered else last) | {"FILTERED": 0}, COMPILER)]
    for name, wanted in zip(FILTERS[:2], on, strict=False):
        if wanted:
            parameters = {"y_parameter": getattr(y_how, name), "z_parameter": getattr(z_how, name)}
            steps += thresholds(rows | parameters | {"WEIGHED": name == "top_p"}, grid)
    if filtered:
        steps.append(Launch(masses_kernel, grid, last | {"FILTERED": filtered}, COMPILER))
    return steps, {"forms": rows["forms"], "form_rows": count, "FILTERED": filtered}


def early(draft, randomness: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments by which a launch can tell a rejection, as early.py keeps it, to itself alone."""
    (batch, gamma), device = draft.shape, draft.device
    known, met = kept(batch, "known", device, torch.int64), kept(batch * gamma, "met", device)
    words = {name: randomness[name] for name in ("seeds", "positions", "uniforms", "seed", "position")}
    return words | {"known": known, "met": met, "launch": next(LAUNCHES)}


def thresholds(arguments: dict[str, Any], grid: tuple[int, int, int]) -> list[Launch]:
    """Return the launches that search for a threshold, one per digit of the widest type's keys."""
    batch, splits, count = grid
    z, y = arguments["z"], arguments["y"]
    lowest = min(UNUSED_BITS.get(x.dtype, 0) for x in (z, y) if x is not None)
    arguments = arguments | {
        "buckets": torch.empty(batch, count, BUCKETS.value, splits, dtype=torch.int64, device=z.device),
        "state": torch.empty(batch, count, STATE.value, dtype=torch.int64, device=z.device),
    }
    shifts = range(32 - DIGIT.value, lowest - 1, -DIGIT.value)
    return [Launch(thresholds_kernel, grid, arguments | {"shift": s, "START": s == shifts[0]}, SEARCH) for s in shifts]
