"""The text drafts itself: what followed the same words before."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from specnb.decoding.arguments import check_count
from specnb.decoding.choosing import Proposal
from specnb.errors import SpecnbError

if TYPE_CHECKING:
    from specnb.decoding.batch import Batch
    from specnb.decoding.cache import CachedModel
    from specnb.decoding.choosing import Chooser
    from specnb.drafters.protocol import DraftRun


@dataclass(frozen=True)
class PromptLookupDrafter:
    """The continuation of the latest earlier occurrence of the text's longest suffix is the draft.

    It needs no model and draws nothing, so q is one-hot: a draft x is accepted with probability p(x). Requests
    that find nothing draft nothing, beside others that do.

    shortest, longest: tokens of the suffix that is looked for, 1 <= shortest <= longest.

    Source: Saxena, "Prompt Lookup Decoding", 2023; the longest match instead of the first one.

    >>> PromptLookupDrafter(shortest=2)
    PromptLookupDrafter(shortest=2, longest=16)
    """

    shortest: int = 1
    longest: int = 16

    def __post_init__(self) -> None:
        for name in ("shortest", "longest"):
            object.__setattr__(self, name, check_count(name, getattr(self, name), least=1))
        if self.shortest > self.longest:
            raise SpecnbError(
                f"shortest is {self.shortest} and longest {self.longest}; expected 1 <= shortest <= longest"
            )

    def start(self, batch: Batch, chooser: Chooser, gamma: int, target: CachedModel) -> DraftRun:
        """Return the state of a run: there is none besides the text."""
        return LookupRun(self, chooser)


@dataclass
class LookupRun:
    """Prompt lookup in one run."""

    drafter: PromptLookupDrafter
    chooser: Chooser
    calls: int = 0

    def propose(self, batch: Batch, limits: np.ndarray) -> Proposal:
        """Look each request's suffix up in its own text."""
        found = [
            continuation(batch.text(row), self.drafter.shortest, self.drafter.longest, int(limit))
            for row, limit in zip(batch.rows, limits, strict=True)
        ]
        lengths = np.array([len(draft) for draft in found], np.int64)
        drafts = np.zeros((len(found), lengths.max(initial=0)), np.int64)
        for row, draft in enumerate(found):
            drafts[row, : len(draft)] = draft
        return Proposal(self.chooser.array(torch.from_numpy(drafts)), None, lengths)

    def rollback(self, lengths: np.ndarray) -> None:
        """Forget nothing: the text is the batch's."""

    def keep(self, index: np.ndarray) -> None:
        """Keep nothing: the loop tells the chooser."""


def continuation(text: np.ndarray, shortest: int, longest: int, most: int) -> np.ndarray:
    """Return up to `most` tokens that followed the latest earlier occurrence of the longest suffix of a text.

    An occurrence that reaches into the suffix itself is a repetition, and goes on repeating.

    >>> continuation(np.array([5, 1, 2, 9, 1, 2, 7, 1, 2]), 1, 16, 3)
    array([7, 1, 2])
    >>> continuation(np.array([9, 1, 2, 7, 1, 2, 5, 9, 1, 2]), 1, 16, 3)  # three tokens match, not two
    array([7, 1, 2])
    >>> continuation(np.array([8, 3, 4, 3, 4]), 1, 16, 5)
    array([3, 4, 3, 4, 3])
    """
    ends = np.flatnonzero(text[:-1] == text[-1]) + 1  # where an earlier copy of the suffix stops
    matched = 1
    while ends.size and matched < longest:
        further = ends[ends > matched]
        further = further[text[further - matched - 1] == text[-matched - 1]]
        if not further.size:
            break
        ends, matched = further, matched + 1
    if not ends.size or matched < shortest or most == 0:
        return text[:0]
    end, L = int(ends[-1]), len(text)
    return text[end + np.arange(most) % (L - end)]
