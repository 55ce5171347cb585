"""Counts draft: Leviathan's unigram and bigram approximations, and longer ones."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from specnb.arrays import is_torch, to_numpy
from specnb.decoding.arguments import check_count, check_tokenizer, kind_of
from specnb.drafters.drawing import Path
from specnb.errors import SpecnbError
from specnb.sampling import Sampling, sampling_or_default

if TYPE_CHECKING:
    from specnb.decoding.batch import Batch
    from specnb.decoding.cache import CachedModel
    from specnb.decoding.choosing import Chooser, Proposal
    from specnb.drafters.protocol import DraftRun

Table = dict[tuple[int, ...], tuple[np.ndarray, np.ndarray]]
"""From a context to the ids that followed it, int64 [n], and how often, int64 [n]."""


@dataclass(frozen=True)
class NGramDrafter:
    """Drafts are drawn from how often each token followed the last ones in a training text.

    If the last order − 1 tokens never occurred there, the last order − 2 count, and so on down to none. It runs
    no model (c = 0 up to the counting), and q is soft: what was drawn from. Made by `NGramDrafter.train`.

    tables: one per length of context, 0 … order − 1. vocabulary: ids that q covers.
    sampling: how it draws; None is the target's sampling, applied to the logarithms of the counts.

    Source: Leviathan, Kalman, Matias, 2023, section 3.6 (unigram and bigram approximation models); back-off to
    shorter contexts without discounts as Brants et al. 2007 do, but normalised at each context.
    """

    tables: tuple[Table, ...] = field(repr=False)
    vocabulary: int
    sampling: Sampling | None = None

    def __post_init__(self) -> None:
        check_count("vocabulary", self.vocabulary, least=1)
        made = isinstance(self.tables, tuple) and len(self.tables) and isinstance(self.tables[0], dict)
        known = self.tables[0].get(()) if made else None
        if known is None or int(np.max(known[0], initial=0)) >= self.vocabulary:
            raise SpecnbError(
                f"tables are {type(self.tables).__name__}; expected those of NGramDrafter.train, whose ids are below "
                f"vocabulary, {self.vocabulary}"
            )
        sampling_or_default(self.sampling)

    @property
    def order(self) -> int:
        """1 for unigrams, 2 for bigrams, …."""
        return len(self.tables)

    @classmethod
    def train(cls, text: Any, *, order: int = 2, tokenizer: Any = None, sampling: Sampling | None = None) -> Any:
        """Return a drafter with the counts of a text.

        Parameters
        ----------
        text : ids (a list, or an integer array of any shape, each row a text), several lists of ids, or, with a
            tokenizer, a string or several. No n-gram crosses from one text into the next.
        order : longest n-gram, >= 1: 1 counts tokens, 2 counts pairs.
        tokenizer : called as `tokenizer(text).input_ids` for strings.
        sampling : how drafts are drawn from the counts; None is the target's.

        Raises
        ------
        SpecnbError : an order below 1, no token, strings without a tokenizer, negative ids or no integers.

        Examples
        --------
        >>> drafter = NGramDrafter.train([1, 2, 1, 3, 1, 2], order=2)
        >>> drafter.row([0, 1]).tolist()  # after 1: twice 2, once 3
        [0, 0, 2, 1]
        >>> drafter.row([0, 7]).tolist()  # 7 never occurred: how often each token did
        [0, 3, 2, 1]
        """
        order = check_count("order", order, least=1)
        texts = list(_texts(text, tokenizer))
        if not any(len(ids) for ids in texts):
            raise SpecnbError("the training text has no token; expected at least one")
        if min(int(ids.min(initial=0)) for ids in texts) < 0:
            raise SpecnbError("the training text has negative ids; expected the target's token ids, without padding")
        vocabulary = 1 + max(int(ids.max(initial=0)) for ids in texts)
        orders = range(1, min(order, max(map(len, texts))) + 1)  # there are no longer ones
        return cls(tuple(_count(texts, n) for n in orders), vocabulary, sampling)

    def row(self, context: Any) -> np.ndarray:
        """Return the counts int64 [vocabulary] of what followed the longest known end of a context."""
        try:
            context = [operator.index(token) for token in context]
        except TypeError as error:
            raise SpecnbError(f"context is {context!r}; expected a list of ids") from error
        for n in range(min(self.order - 1, len(context)), -1, -1):
            if (known := self.tables[n].get(tuple(context[len(context) - n :]))) is not None:
                counts = np.zeros(self.vocabulary, np.int64)
                counts[known[0]] = known[1]
                return counts
        raise AssertionError("the empty context is always known")

    def start(self, batch: Batch, chooser: Chooser, gamma: int, target: CachedModel) -> DraftRun:
        """Return the state of a run: there is none besides the text."""
        ids = target.last_id + 1
        if self.vocabulary > ids:
            raise SpecnbError(
                f"the n-gram drafter was trained on ids up to {self.vocabulary - 1}; expected at most {ids - 1}, the "
                "target's vocabulary: train it on ids of the target's tokenizer"
            )
        return NGramRun(self, Path(chooser.with_sampling(self.sampling), gamma))


@dataclass
class NGramRun:
    """An n-gram drafter in one run."""

    drafter: NGramDrafter
    path: Path
    calls: int = 0

    def propose(self, batch: Batch, limits: np.ndarray) -> Proposal:
        """Draw each draft from the counts after the tokens before it."""
        reach = self.drafter.order - 1
        contexts = [batch.text(row)[-reach:].tolist() if reach else [] for row in batch.rows]

        def logits(i: int, last: torch.Tensor | None) -> torch.Tensor:
            if last is not None:
                for context, token in zip(contexts, last.tolist(), strict=True):
                    context.append(token)
            counts = np.stack([self.drafter.row(context[-reach:] if reach else []) for context in contexts])
            return torch.from_numpy(counts).float().log()

        return self.path.draw(batch.live_lengths, limits, logits)

    def rollback(self, lengths: np.ndarray) -> None:
        """Forget nothing: the text is the batch's."""

    def keep(self, index: np.ndarray) -> None:
        """Drop the rows that left."""
        self.path.keep(index)


def _texts(text: Any, tokenizer: Any) -> Iterable[np.ndarray]:
    """Return each text as int64 [length]."""
    if isinstance(text, (bytes, Mapping, Set)) or not isinstance(text, Iterable):
        raise SpecnbError(f"the training text is {kind_of(text)}; expected ids, lists of ids, or strings")
    if hasattr(text, "ndim"):
        array = _ids(text)
        return list(array.reshape(-1, array.shape[-1] if array.ndim and array.size else 1)) if array.size else []
    texts = [text] if isinstance(text, str) else list(text)
    if texts and all(isinstance(one, str) for one in texts):
        return [_ids(ids) for ids in _written(texts, tokenizer)]
    flat = not any(isinstance(one, Iterable) and getattr(one, "ndim", 1) for one in texts)
    return [_ids(texts)] if flat else [_ids(one).reshape(-1) for one in texts]


def _written(texts: list[str], tokenizer: Any) -> list[Any]:
    """Return the ids of strings."""
    if tokenizer is None:
        raise SpecnbError("the training text is a string; expected a tokenizer with it, tokenizer=...")
    check_tokenizer("tokenizer", tokenizer, "the target's")
    return [tokenizer(text).input_ids for text in texts]


def _ids(values: Any) -> np.ndarray:
    try:
        array = to_numpy(values) if is_torch(values) else np.asarray(values)
    except ValueError as error:  # rows of different lengths
        raise SpecnbError(f"the training text has {kind_of(values)}s within lists; expected lists of ids") from error
    if array.size and array.dtype.kind not in "iu":
        raise SpecnbError(f"the training text holds {array.dtype}; expected integer ids, or strings with a tokenizer")
    return array.astype(np.int64)


def _count(texts: list[np.ndarray], n: int) -> Table:
    """Return the counts of n-grams as a table from their first n − 1 ids to what followed."""
    windows = [np.lib.stride_tricks.sliding_window_view(ids, n) for ids in texts if len(ids) >= n]
    if not windows:
        return {}
    grams, counts = np.unique(np.concatenate(windows), axis=0, return_counts=True)
    starts = np.flatnonzero(np.r_[True, (grams[1:, :-1] != grams[:-1, :-1]).any(1)])
    pieces = zip(np.split(grams, starts[1:]), np.split(counts, starts[1:]), strict=True)
    return {tuple(piece[0, :-1].tolist()): (piece[:, -1], number) for piece, number in pieces}
