"""Which tokens two tokenizers share, and one text in the ids of both."""

from __future__ import annotations

import functools
import itertools
import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from specnb.decoding.arguments import check_tokenizer
from specnb.errors import SpecnbError

BYTE = re.compile(r"<0x[0-9A-Fa-f]{2}>")
"""A SentencePiece token that stands for a byte; it would decode to the same text as the letter's own token."""

UNKNOWN = "\ufffd"
"""What part of a character decodes to: such tokens look alike and aren't."""


@dataclass(frozen=True, eq=False)
class SharedVocabulary:
    """Pairs of ids that mean the same in a target's and in a draft's vocabulary, one to one.

    target_ids, draft_ids: int64 [S]. vocabulary: the target's ids, as far as rows q have to reach.

    Examples
    --------
    A draft that knows two of three tokens, and one that the target lacks; α is what its restricted q overlaps p by:

    >>> from specnb import laws
    >>> shared = SharedVocabulary(np.array([0, 2]), np.array([1, 0]))
    >>> shared.restrict([0.2, 0.6, 0.2])
    array([0.75, 0.  , 0.25])
    >>> _, alpha = laws.emitted_law(p=[0.5, 0.25, 0.25], q=shared.restrict([0.2, 0.6, 0.2]))
    >>> float(alpha)
    0.75
    """

    target_ids: np.ndarray
    draft_ids: np.ndarray

    @property
    def vocabulary(self) -> int:
        """One more than the largest shared id of the target."""
        return int(self.target_ids.max(initial=-1)) + 1

    def __len__(self) -> int:
        return len(self.target_ids)

    def __repr__(self) -> str:
        return f"SharedVocabulary({len(self)} tokens)"

    def restrict(self, q: Any) -> np.ndarray:
        """Return a draft's rows q [..., V of the draft] as rows over the target's ids, on the shared tokens only.

        They are q/q(shared), float64 [..., vocabulary]; the acceptance that they give is Σ min(p, q/q(shared)).

        Raises
        ------
        SpecnbError : a row without mass on the shared tokens.
        """
        shared = np.asarray(q, np.float64)[..., self.draft_ids]
        mass = shared.sum(-1, keepdims=True)
        if not (mass > 0).all():
            raise SpecnbError("a row of q has no mass on the shared tokens; expected some: nothing could be drafted")
        rows = np.zeros((*shared.shape[:-1], self.vocabulary))
        rows[..., self.target_ids] = shared / mass
        return rows

    def within(self, target_size: int, draft_size: int) -> SharedVocabulary:
        """Return the pairs that lie inside two models' vocabularies."""
        inside = (self.target_ids < target_size) & (self.draft_ids < draft_size)
        return SharedVocabulary(self.target_ids[inside], self.draft_ids[inside])


def shared_vocabulary(target_tokenizer: Any, draft_tokenizer: Any) -> SharedVocabulary:
    """Return the tokens that two tokenizers share.

    Ordinary tokens are shared if they add the same text behind other text, whatever sign a vocabulary writes a
    space with; where several do, the lowest id counts. End and beginning of text are shared by what they are, other
    special tokens by their names. Parts of characters are not shared.

    Source: token-level intersection, Timor et al., "Accelerating LLM Inference with Lossless Speculative Decoding
    Algorithms for Heterogeneous Vocabularies", ICML 2025, section 4.
    """
    check_tokenizer("target_tokenizer", target_tokenizer, "the target's")
    check_tokenizer("tokenizer", draft_tokenizer, "the draft's")
    target, draft = surfaces(target_tokenizer), surfaces(draft_tokenizer)
    pairs = list(_special_pairs(target_tokenizer, draft_tokenizer).items())
    pairs += [(i, draft[text]) for text, i in target.items() if text in draft]
    used: dict[int, int] = {}
    for target_id, draft_id in pairs:  # the end of text comes before a beginning of text with the same id
        used.setdefault(draft_id, target_id)
    ordered = sorted((target_id, draft_id) for draft_id, target_id in used.items())
    ids = np.array(ordered, np.int64).reshape(-1, 2)
    return SharedVocabulary(ids[:, 0], ids[:, 1])


def surfaces(tokenizer: Any) -> dict[str, int]:
    """Return the text that each ordinary token adds behind another one, with the lowest id that adds it."""
    special = set(tokenizer.all_special_ids)
    names = {i: name for name, i in tokenizer.get_vocab().items() if i not in special and not BYTE.fullmatch(name)}
    ids = sorted(names)
    alone = _decoded(tokenizer, [[i] for i in ids])
    clear = (i for i, text in zip(ids, alone, strict=True) if text.strip() and UNKNOWN not in text)
    if (anchor := next(clear, None)) is None:
        return {}
    before = _decoded(tokenizer, [[anchor]])[0]
    found: dict[str, int] = {}
    for i, text in zip(ids, _decoded(tokenizer, [[anchor, i] for i in ids]), strict=True):
        added = text[len(before) :]
        if text.startswith(before) and added and UNKNOWN not in added:
            found.setdefault(added, i)
    return found


class Translator:
    """Writes a text of the target's ids in the draft's ids, as the draft's own tokenizer would.

    The text between special tokens is decoded and encoded again. Special tokens become those of the draft, or are
    left out if it has none such. A draft that is used to a beginning of text gets one. What is lost in between (a
    character of which only a part is there) costs acceptance, never correctness.
    """

    def __init__(self, target_tokenizer: Any, draft_tokenizer: Any) -> None:
        self.target, self.draft = target_tokenizer, draft_tokenizer
        self.special = frozenset(target_tokenizer.all_special_ids)
        self.counterparts = _special_pairs(target_tokenizer, draft_tokenizer)
        begin = list(draft_tokenizer("").input_ids)
        self.begin = begin if begin == [draft_tokenizer.bos_token_id] else []
        self._write = functools.lru_cache(maxsize=256)(self._written)  # what special tokens enclose doesn't change

    def __call__(self, ids: np.ndarray) -> np.ndarray:
        """Return a text int64 [length] in the draft's ids, int64 [any length but 0]."""
        written: list[int] = []
        for special, group in itertools.groupby(ids.tolist(), self.special.__contains__):
            run = tuple(group)
            written += [self.counterparts[i] for i in run if i in self.counterparts] if special else self._write(run)
        if written[:1] != self.begin:
            written = self.begin + written
        return np.array(written or [self.draft.eos_token_id or 0], np.int64)

    def _written(self, ids: tuple[int, ...]) -> list[int]:
        text = _decoded(self.target, [list(ids)])[0].rstrip(UNKNOWN)
        return list(self.draft(text, add_special_tokens=False).input_ids)


def _special_pairs(target: Any, draft: Any) -> dict[int, int]:
    """Return the draft's id for each special id of the target that has a counterpart, the ends of text first."""
    pairs: dict[int, int] = {}
    for role in ("eos_token_id", "bos_token_id"):
        if getattr(target, role) is not None and getattr(draft, role) is not None:
            pairs.setdefault(getattr(target, role), getattr(draft, role))
    names = dict(zip(draft.all_special_tokens, draft.all_special_ids, strict=True))
    meant = {target.eos_token_id, target.bos_token_id, target.pad_token_id, target.unk_token_id}
    for name, i in zip(target.all_special_tokens, target.all_special_ids, strict=True):
        if i not in meant and name in names:
            pairs[i] = names[name]
    return pairs


def _decoded(tokenizer: Any, texts: list[list[int]]) -> list[str]:
    decode = functools.partial(tokenizer.decode, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    return [decode(ids) for ids in texts]
