"""Which launches make a verdict by each rule. The last of them writes the results."""

from __future__ import annotations

from typing import Any

import torch
import triton

from specnb_kernels.block import MASSES, prefixes_kernel
from specnb_kernels.coupled import compare_kernel
from specnb_kernels.launch import MAX_SPLITS, Launch, arrivals, layout, options
from specnb_kernels.verdict import PARTIALS, verify_kernel

NO_PREFIXES = dict.fromkeys(("masses", "ratios", "chances", "findings"))
PROBABILITIES = {"forms": None, "form_rows": 0, "FILTERED": 0}


def token(draft, q, p, lengths, onehot, randomness: dict[str, Any], forms=PROBABILITIES, **shape) -> list[Launch]:
    """Plan the rules token and match, and a plain draw, which is a verdict without drafts: kernel A alone.

    randomness tells kernel A its keys, positions and words; shape is as in `launch.layout`. forms tells that q and p
    are logits, whose forms a launch before has left.
    """
    rows = layout(p, q, len(draft), **shape) | drafts(draft, lengths) | {"onehot": onehot} | forms
    return [kernel_a(rows | randomness | NO_PREFIXES)]


def block(draft, q, p, lengths, onehot, randomness: dict[str, Any], forms=PROBABILITIES, **shape) -> list[Launch]:
    """Plan the rule block: the tests of the prefixes of 1 … G - 1 drafts, then kernel A."""
    batch, prefixes = len(draft), max(draft.shape[1] - 1, 0)
    rows = layout(p, q, batch * max(prefixes, 1), **shape) | drafts(draft, lengths) | {"onehot": onehot} | forms
    splits = rows["splits"]
    left = {
        "masses": torch.empty(batch, prefixes, MASSES.value, splits, dtype=torch.int64, device=p.device),
        "ratios": torch.empty(batch, prefixes, dtype=torch.float64, device=p.device),
        "chances": torch.empty(batch, prefixes, dtype=torch.float64, device=p.device),
        "findings": torch.empty(batch, prefixes, dtype=torch.int32, device=p.device),
    }
    workspace = {"arrivals": arrivals(batch * prefixes, splits, p.device), "SPLIT_BLOCK": max(MAX_SPLITS, splits)}
    first = Launch(prefixes_kernel, (batch, splits, prefixes), rows | left | workspace,
                   options(p, rows["q"], formed=forms["forms"] is not None))  # fmt: skip
    return [first, kernel_a(rows | left | randomness)]


def coupled(draft, q, p, lengths, onehot, randomness: dict[str, Any], forms=PROBABILITIES, **shape) -> list[Launch]:
    """Plan the rule coupled, which reads no q: a token from every row of p, then their comparison with the draft."""
    batch, places = p.shape[:2]
    rows = layout(p, None, batch * places, **shape) | drafts(draft[:, :0], None) | {"onehot": None} | forms
    own = kernel_a(rows | randomness | NO_PREFIXES, places)
    drawn = {"own": own.arguments["tokens"], "flags": own.arguments["status"], "V": p.shape[2]}
    compared = drafts(draft, lengths) | drawn | results(batch, places, p.device)
    return [own, Launch(compare_kernel, (batch,), compared, {"num_warps": 1, "enable_fp_fusion": False})]


def kernel_a(arguments: dict[str, Any], places: int | None = None) -> Launch:
    """Return a launch of kernel A with results and workspace: one verdict per request, or a draw at each place."""
    p, splits = arguments["p"], arguments["splits"]
    rows = len(p) * (places or 1)
    workspace = {
        "partials": torch.empty(rows, PARTIALS.value, splits, dtype=torch.int64, device=p.device),
        "arrivals": arrivals(rows, splits, p.device),
    }
    constants = {"SPLIT_BLOCK": max(MAX_SPLITS, splits), "EACH": places is not None}
    arguments = arguments | workspace | constants | results(rows, arguments["G"] + 1, p.device)
    scaled, formed = (arguments[name] is not None for name in ("masses", "forms"))
    compiler = options(p, arguments["q"], scaled, formed)
    return Launch(verify_kernel, (len(p), splits, places or 1), arguments, compiler)


def drafts(draft: torch.Tensor, lengths: torch.Tensor | None) -> dict[str, Any]:
    """Return the arguments that tell the drafted ids."""
    G = draft.shape[1]
    return {"draft": draft, "lengths": lengths, "G": G, "GAMMA_BLOCK": max(8, triton.next_power_of_2(G + 1))}


def results(rows: int, columns: int, device: torch.device) -> dict[str, torch.Tensor]:
    """Return the outputs, not yet written."""
    return {
        "tokens": torch.empty(rows, columns, dtype=torch.int64, device=device),
        "num_accepted": torch.empty(rows, dtype=torch.int64, device=device),
        "status": torch.empty(rows, dtype=torch.int32, device=device),
    }
