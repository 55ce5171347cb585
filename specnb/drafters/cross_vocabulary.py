"""A model with another tokenizer drafts, on the tokens that both share."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from specnb.arrays import to_numpy
from specnb.decoding.arguments import check_tokenizer
from specnb.decoding.cache import CachedModel
from specnb.decoding.support import check_kind, check_model
from specnb.drafters.drawing import Path
from specnb.drafters.vocabularies import SharedVocabulary, Translator, shared_vocabulary
from specnb.errors import SpecnbError
from specnb.sampling import Sampling, sampling_or_default

if TYPE_CHECKING:
    from specnb.decoding.batch import Batch
    from specnb.decoding.choosing import Chooser, Proposal
    from specnb.drafters.protocol import DraftRun


@dataclass(frozen=True)
class CrossVocabularyDrafter:
    """A model whose tokenizer isn't the target's drafts the tokens that both have.

    Its rows q are restricted to the shared tokens and normalised there: α = Σ min(p, q/q(shared)), at most
    p(shared), which `record=True` in `generate` adds up. Each round the draft reads the text as its own tokenizer
    writes it, and forgets what that changed. It is lossless whatever the two vocabularies share, since q is what
    was drawn from. Neither model nor tokenizer is changed.

    model: a decoder-only transformers model. tokenizer, target_tokenizer: transformers tokenizers of the draft and
    of the target. sampling: how it draws from the restricted rows; None is the target's sampling. Where a text is
    longer than the draft's positions, nothing is drafted.

    Source: token-level intersection, Timor et al., "Accelerating LLM Inference with Lossless Speculative Decoding
    Algorithms for Heterogeneous Vocabularies", ICML 2025, algorithm 4.
    """

    model: Any
    tokenizer: Any = field(repr=False)
    target_tokenizer: Any = field(repr=False)
    sampling: Sampling | None = None

    def __post_init__(self) -> None:
        check_kind("draft", self.model)
        check_tokenizer("tokenizer", self.tokenizer, "the draft's")
        check_tokenizer("target_tokenizer", self.target_tokenizer, "the target's")
        sampling_or_default(self.sampling)

    @functools.cached_property
    def shared(self) -> SharedVocabulary:
        """The tokens that can be drafted."""
        return shared_vocabulary(self.target_tokenizer, self.tokenizer)

    def start(self, batch: Batch, chooser: Chooser, gamma: int, target: CachedModel) -> DraftRun:
        """Return a run of its own cache, or raise `SpecnbError` if the vocabularies share nothing."""
        check_model("draft", self.model, 1)
        shared = self.shared.within(target.last_id + 1, self.model.get_input_embeddings().num_embeddings)
        if not len(shared):
            raise SpecnbError(
                "the draft's tokenizer shares no token with the target's; expected some, as tokenizers of one language "
                "or alphabet do: are `tokenizer` (the draft's) and `target_tokenizer` the models' own?"
            )
        translate = Translator(self.target_tokenizer, self.tokenizer)
        return CrossVocabularyRun(self.model, shared, translate, Path(chooser.with_sampling(self.sampling), gamma))


class CrossVocabularyRun:
    """A draft with other ids in one run: its cache, and which of its ids are in it."""

    calls = 0

    def __init__(self, model: Any, shared: SharedVocabulary, translate: Translator, path: Path) -> None:
        self.model, self.translate, self.path = model, translate, path
        self.target_ids, self.draft_ids = (
            torch.from_numpy(ids).to(model.device) for ids in (shared.target_ids, shared.draft_ids)
        )
        self.vocabulary = shared.vocabulary
        self.draft_of = torch.zeros(self.vocabulary, dtype=torch.int64, device=model.device)
        self.draft_of[self.target_ids] = self.draft_ids
        self.known = getattr(model.config.get_text_config(decoder=True), "max_position_embeddings", None) or 2**31
        self.cached = CachedModel(model, 0, 0)
        self.fed: list[np.ndarray] = []

    def propose(self, batch: Batch, limits: np.ndarray) -> Proposal:
        """Draw each draft from the shared part of the model's next row, feeding it the draft before."""
        G = int(limits.max(initial=0))
        if G == 0:
            return self.path.chooser.nothing()
        texts = [self.translate(batch.text(row)) for row in batch.rows]
        limits = np.where([len(text) + G > self.known for text in texts], 0, limits)
        if not limits.any():
            return self.path.chooser.nothing()
        texts = [text[: self.known - G] for text in texts]  # such rows are fed in the batch, but draft nothing
        lengths = np.array([len(text) for text in texts], np.int64)
        self._recall(texts, lengths, G)
        start = self._unseen(texts, lengths)

        def logits(i: int, last: torch.Tensor | None) -> torch.Tensor:
            fed = start if last is None else self.draft_of[last.to(self.draft_of.device)][:, None]
            self.calls += 1
            return self._spread(self.cached.logits(fed, lengths + i, keep=1)[:, 0])

        proposal = self.path.draw(batch.live_lengths, limits, logits)
        drafted = self.draft_of.cpu().numpy()[to_numpy(proposal.tokens)[:, :-1]]
        self.fed = [np.concatenate(both) for both in zip(texts, drafted, strict=True)]
        return proposal

    def rollback(self, lengths: np.ndarray) -> None:
        """Forget nothing yet: which ids are still those of the text, the next text tells."""

    def keep(self, index: np.ndarray) -> None:
        """Drop the rows that left."""
        if self.fed:
            self.cached.keep(index)
            self.fed = [self.fed[r] for r in index]
        self.path.keep(index)

    def _recall(self, texts: list[np.ndarray], lengths: np.ndarray, G: int) -> None:
        """Roll the cache back to what it shares with these texts; a larger one is needed at times, and starts anew.

        How long a text is in the draft's ids isn't known beforehand. Doubling keeps what is fed again below the
        length of the text.
        """
        if (needed := int(lengths.max()) + G) > self.cached.step.size:
            self.cached = CachedModel(self.model, len(texts), min(2 * needed, self.known + 1))
            self.fed = [text[:0] for text in texts]
        common = [_common(fed, text) for fed, text in zip(self.fed, texts, strict=True)]
        self.cached.rollback(np.minimum(common, lengths - 1))

    def _unseen(self, texts: list[np.ndarray], lengths: np.ndarray) -> torch.Tensor:
        """Return what the cache lacks of each text, int64 [R, k], right-aligned."""
        width = int((lengths - self.cached.seen).max())
        fed = np.zeros((len(texts), width), np.int64)
        for r, text in enumerate(texts):
            fed[r, width - min(width, len(text)) :] = text[-width:]
        return torch.from_numpy(fed)

    def _spread(self, logits: torch.Tensor) -> torch.Tensor:
        """Return a draft's logits [R, V of the draft] over the target's ids, −inf where nothing is shared."""
        rows = logits.new_full((len(logits), self.vocabulary), -torch.inf)
        rows[:, self.target_ids] = logits[:, self.draft_ids]
        return rows


def _common(one: np.ndarray, other: np.ndarray) -> int:
    """Return how many ids two texts begin with alike."""
    n = min(len(one), len(other))
    different = np.flatnonzero(one[:n] != other[:n])
    return int(different[0]) if different.size else n
