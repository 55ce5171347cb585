"""transformers' logits processors, applied token by token to each request's own text."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase
from transformers.generation import logits_process

from specnb.decoding.arguments import callables
from specnb.errors import SpecnbError

_NAMES = (
    "EncoderNoRepeatNGramLogitsProcessor", "EncoderRepetitionPenaltyLogitsProcessor", "EpsilonLogitsWarper",
    "EtaLogitsWarper", "ExponentialDecayLengthPenalty", "ForcedBOSTokenLogitsProcessor",
    "ForcedEOSTokenLogitsProcessor", "InfNanRemoveLogitsProcessor", "LogitNormalization", "MinLengthLogitsProcessor",
    "MinNewTokensLengthLogitsProcessor", "MinPLogitsWarper", "NoBadWordsLogitsProcessor",
    "NoRepeatNGramLogitsProcessor", "RepetitionPenaltyLogitsProcessor", "SequenceBiasLogitsProcessor",
    "SuppressTokensAtBeginLogitsProcessor",
    "SuppressTokensLogitsProcessor", "TemperatureLogitsWarper", "TopHLogitsWarper", "TopKLogitsWarper",
    "TopPLogitsWarper", "TypicalLogitsWarper",
)  # fmt: skip
STATELESS = tuple(getattr(logits_process, name) for name in _NAMES if hasattr(logits_process, name))
"""transformers' own processors that are functions of their arguments: nobody can tell when they are called."""

_BY_ROW = {
    "RepetitionPenaltyLogitsProcessor": "prompt_ignore_length",
    "EncoderRepetitionPenaltyLogitsProcessor": "encoder_input_ids",
    "EncoderNoRepeatNGramLogitsProcessor": "generated_ngrams",
}
"""Attributes that hold a value per request of the batch that they were made for."""


class Processing:
    """The processors of each request of a batch.

    A processor sees one request at a time, as a batch of one, because rows accept different lengths. One that
    may keep a state is called exactly as in plain decoding: once for each token, in order, with the tokens that
    are in the output before it and none that was rejected. In a batch, each request has its own copy of it.
    """

    def __init__(self, processors: Iterable[Any] | None, requests: int) -> None:
        processors = callables("logits_processor", processors, "transformers.LogitsProcessor")
        self.any = bool(processors)
        self.stateless = all(type(p) in STATELESS for p in processors)
        self._of = [[_own(p, row, requests) for p in processors] for row in range(requests)] if processors else []

    def apply(self, row: int, text: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Return the processed scores [V] of the token that follows a request's text [L]."""
        text, scores = text[None].to(scores.device), scores[None].float()
        for processor in self._of[row]:
            scores = processor(text, scores)
        return scores[0]


def own_copies(objects: list[Any], requests: int, stateless: tuple[type, ...]) -> list[list[Any]]:
    """Return for each request its own copies of objects that may keep a state; one request has the originals."""
    return [
        [one if requests == 1 or type(one) in stateless else _copied(one, requests) for one in objects]
        for _ in range(requests)
    ]


def _own(processor: Any, row: int, requests: int) -> Any:
    """Return the processor of one request: what it keeps per request or per call is that request's alone."""
    name, kind = _BY_ROW.get(type(processor).__name__, ""), type(processor)
    if kind is logits_process.PrefixConstrainedLogitsProcessor:
        processor = copy.copy(processor)
        allowed = processor._prefix_allowed_tokens_fn
        processor._prefix_allowed_tokens_fn = lambda _, text: allowed(row, text)
    elif requests > 1 and len(values := _sized(getattr(processor, name, None))) == requests:
        processor = copy.copy(processor)
        setattr(processor, name, values[row : row + 1])
        processor.batch_size = 1
    elif requests > 1 and kind not in STATELESS:
        processor = _copied(processor, requests)
    return processor


def _sized(value: Any) -> Any:
    return value if isinstance(value, list) or (torch.is_tensor(value) and value.ndim) else ()


def _copied(one: Any, requests: int) -> Any:
    """Return a deep copy that shares models and tokenizers with the original."""
    shared = (torch.nn.Module, PreTrainedTokenizerBase)
    held = vars(one).values() if hasattr(one, "__dict__") else ()
    try:
        return copy.deepcopy(one, {id(value): value for value in held if isinstance(value, shared)})
    except Exception as error:
        raise SpecnbError(
            f"{type(one).__name__} may keep a state, so each of the {requests} requests needs a copy of it, but it "
            f"can't be copied ({error}); decode these requests one at a time"
        ) from error
