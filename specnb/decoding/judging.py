"""Verification where logits processors change p: what each of them is shown, and when."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from specnb.arrays import to_numpy
from specnb.decoding.batch import Batch
from specnb.decoding.choosing import Chooser, Decision, Proposal
from specnb.decoding.ends import Ends
from specnb.decoding.processing import Processing

IN_TURN = ("verify", "verify_coupled")
"""Samplers of rules that judge drafts one after another and never read p behind the first rejection."""


def process_all(
    batch: Batch, chooser: Chooser, processing: Processing, proposal: Proposal, logits: torch.Tensor
) -> torch.Tensor:
    """Return logits [R, G+1, V] processed at every draft that counts: for processors that keep no state."""
    drafts = _known(proposal, logits)
    processed = logits.float()  # a copy, or the forward's own output that nobody else reads
    for r, row in enumerate(batch.rows.tolist()):
        for i in range(int(proposal.lengths[r]) + 1):
            processed[r, i] = processing.apply(row, batch.shown(row, drafts[r, :i]), logits[r, i])
    return processed


def judge_in_turn(
    batch: Batch, chooser: Chooser, processing: Processing, ends: Ends, proposal: Proposal, logits: torch.Tensor,
    start: np.ndarray,
) -> tuple[Any, Decision]:  # fmt: skip
    """Process and judge draft by draft, so that processors are called for what is in the output and nothing else.

    A position is processed once all drafts before it are accepted and none of them ended its request; p behind
    that keeps unprocessed logits, which the rules of `IN_TURN` don't read. Each row of p is computed once: while a
    draft is judged, those behind it are zeros.
    """
    drafts, G = _known(proposal, logits), logits.shape[1] - 1
    going, logits, p = np.ones(len(start), bool), logits.float(), None
    for i in range(G + 1):
        for r in np.flatnonzero(going).tolist():
            row = int(batch.rows[r])
            logits[r, i] = processing.apply(row, batch.shown(row, drafts[r, :i]), logits[r, i])
        p = _with_columns(p, chooser.probabilities(logits[:, i : i + 1], i), i, G + 1)
        if i == G:
            break
        q = None if proposal.q is None else proposal.q[:, : i + 1]
        lengths = np.minimum(proposal.lengths, i + 1)
        so_far = chooser.verify(Proposal(proposal.tokens[:, : i + 1], q, lengths), p[:, : i + 2], start)
        going &= so_far.accepted > i
        for r in np.flatnonzero(going).tolist():
            going[r] = not ends.after(int(batch.rows[r]), batch.shown, so_far.draft[r, : i + 1])
        if not going.any():
            p = _with_columns(p, chooser.probabilities(logits[:, i + 1 :], i + 1), i + 1, G + 1)
            break
    return p, chooser.verify(proposal, p, start)


def _with_columns(p: Any, columns: Any, first: int, width: int) -> Any:
    """Return p [R, width, V] with these columns from `first` on, in place; None is all zeros."""
    if p is None:
        shape = (len(columns), width, columns.shape[2])
        p = columns.new_zeros(shape) if torch.is_tensor(columns) else np.zeros(shape, columns.dtype)
    p[:, first : first + columns.shape[1]] = columns
    return p


def _known(proposal: Proposal, logits: torch.Tensor) -> np.ndarray:
    """Return the drafts as ids that processors may look up; others are never accepted."""
    return np.clip(to_numpy(proposal.tokens), 0, logits.shape[2] - 1)
