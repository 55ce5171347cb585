"""A run again, with its cache in pages beside the per-row one: `paged`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from specnb.decoding.cache import CachedModel
from specnb.decoding.constrained import Following
from specnb.decoding.paging import Moved, PagedModel
from specnb.errors import SpecnbError

if TYPE_CHECKING:
    from specnb.decoding.generation import Generation


@dataclass(eq=False)
class Paged:
    """A run whose target's cache was kept twice, by rows and in pages.

    block_size: tokens of a block. peak: the most blocks in use at once. reserved: blocks that rows of full length
    take, as the per-row cache does. difference: the largest absolute difference between a logit of one and the
    other. log: a dict for each round of each request.
    """

    block_size: int
    reserved: int
    peak: int = 0
    difference: float = 0.0
    log: list[dict[str, Any]] = field(default_factory=list)

    @property
    def moved(self) -> int:
        """Bytes that rejections wrote or copied."""
        return sum(line["moved"] for line in self.log)

    def to_frame(self) -> Any:
        """Return a line for each round of each request, as a pandas DataFrame.

        fed: logical length after the verification, drafts included. length: after rejection. blocks: the request's
        block table then. freed: blocks that the rejection gave back. moved: bytes that it wrote or copied.
        """
        import pandas as pd

        return pd.DataFrame(self.log, columns=["round", "request", "fed", "length", "blocks", "freed", "moved"])

    def __repr__(self) -> str:
        return (
            f"Paged(block_size={self.block_size}, peak={self.peak} of {self.reserved} blocks, "
            f"difference={self.difference:g}, moved={self.moved} bytes)"
        )


def paged(run: Generation, block_size: int = 16) -> Paged:
    """Make a run again with the target's cache in pages beside the per-row one, and compare them at every forward.

    Parameters
    ----------
    run : from `specnb.generate`. block_size : tokens of a block, >= 1.

    Returns
    -------
    Paged : each round's lengths, block tables, and what rejection moved.

    Raises
    ------
    SpecnbError : a block size below 1; a run that can't be made again (processors or criteria with a state), or whose
        drafter uses the target's own cache.

    Examples
    --------
    >>> import specnb
    >>> target, draft, tokenizer = specnb.load_pair()
    >>> ids = tokenizer("ROMEO. But soft", return_tensors="pt").input_ids
    >>> run = specnb.generate(
    ...     target, specnb.drafters.ModelDrafter(draft), ids, max_new_tokens=12, gamma=4, seed=1, eos_token_id=None
    ... )
    >>> specnb.paged(run, block_size=4).moved
    0

    Source: Kwon et al., "Efficient Memory Management for Large Language Model Serving with PagedAttention", SOSP 2023.
    """
    if isinstance(block_size, bool) or not isinstance(block_size, int) or block_size < 1:
        raise SpecnbError(f"block_size is {block_size!r}; expected an integer >= 1")
    if run.plan is None or not run.plan.repeatable:
        raise SpecnbError("the run can't be made again: it had processors or criteria that may keep a state")
    with torch.inference_mode():
        again = run.plan.silent().start()
        draft = again.draft.draft if isinstance(again.draft, Following) else again.draft
        if getattr(getattr(draft, "cached", None), "cache", None) is again.target.cache:
            raise SpecnbError("the drafter uses the target's own cache; expected one with a cache of its own, or none")
        both = _Both(again.target, again.batch.rows, again.batch.size, block_size)
        again.target = both  # type: ignore[assignment]
        while again.batch.rows.size:
            again.round()
    return both.paged


class _Both:
    """A target that keeps its cache twice and answers with the per-row one."""

    def __init__(self, rows: CachedModel, requests: np.ndarray, size: int, block_size: int) -> None:
        self.rows, self.requests = rows, requests
        rows.seen = np.zeros(len(requests), np.int64)  # a prefilled cache counts for nothing here: both feed all
        self.pages = PagedModel(rows.model, len(requests), size, block_size)
        self.paged = Paged(block_size, self.pages.pages.blocks - 1)
        self.round = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rows, name)

    def logits(self, tokens: torch.Tensor, ends: np.ndarray, keep: int) -> torch.Tensor:
        """Feed both, and note how far apart they are where a row has tokens; the rest is padding."""
        columns = ends[:, None] - keep + np.arange(keep)
        count = torch.from_numpy((columns >= self.rows.seen[:, None]) & (columns < self.rows.step.size - 1))
        logits = self.rows.logits(tokens, ends, keep)
        apart = (logits - self.pages.logits(tokens, ends, keep)).abs().amax(2)[count.to(logits.device)]
        self.paged.difference = max(self.paged.difference, float(apart.max()))
        self.paged.peak = self.pages.pages.peak
        return logits

    def rollback(self, lengths: np.ndarray) -> None:
        """Forget what was rejected, in both, and note what the pages did."""
        self.rows.rollback(lengths)
        pages = self.pages.pages
        fed, before = pages.lengths, (pages.table != 0).sum(1)
        with Moved() as moved:
            self.pages.rollback(lengths)
        for r, request in enumerate(self.requests.tolist()):
            blocks = [int(block) for block in pages.table[r] if block]
            self.paged.log.append({
                "round": self.round, "request": request, "fed": int(fed[r]), "length": int(pages.lengths[r]),
                "blocks": blocks, "freed": int(before[r]) - len(blocks), "moved": moved.bytes,
            })  # fmt: skip
        self.round += 1

    def keep(self, index: np.ndarray) -> None:
        """Drop the rows that left, from both."""
        self.rows.keep(index)
        self.pages.keep(index)
        self.requests = self.requests[index]
