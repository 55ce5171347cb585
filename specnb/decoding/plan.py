"""Everything that determines a run, checked: from a plan the same run can be made again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from specnb import rules
from specnb.decoding.adaptive import AdaptiveGamma
from specnb.decoding.batch import Batch
from specnb.decoding.cache import CachedModel
from specnb.decoding.choosing import Chooser
from specnb.decoding.constrained import Parsers
from specnb.decoding.ends import Ends
from specnb.decoding.estimating import JUDGES, Estimating
from specnb.decoding.judging import IN_TURN
from specnb.decoding.prefilled import take_over
from specnb.decoding.processing import Processing
from specnb.decoding.run import Run
from specnb.decoding.streaming import Streaming
from specnb.decoding.trace import Writer
from specnb.drafters import Drafter, NoDrafts
from specnb.errors import SpecnbError
from specnb.rules import Rule
from specnb.sampling import Sampling
from specnb.streams import keys


@dataclass(frozen=True)
class Plan:
    """The arguments of `specnb.generate`, read.

    prompts: each int64 [length], without padding. padding: for each prompt the ids before it that processors and
    criteria are shown, where padding is on the left. gamma: 0 without a drafter. cache, cache_padding: keys and values
    of the prompts' first tokens, and how many slots of each row lie before them.
    """

    target: Any
    drafter: Drafter | None
    prompts: list[np.ndarray]
    max_new_tokens: int
    gamma: int | AdaptiveGamma
    sampling: Sampling
    rule: Rule
    seed: Any
    backend: str
    stops: np.ndarray
    padding: Sequence[np.ndarray] = ()
    processors: Sequence[Any] = ()
    criteria: Sequence[Any] = ()
    streamers: Any = None
    announce: bool = True
    cache: Any = None
    constraint: Any = None
    cache_padding: np.ndarray | None = None
    record: bool = False
    trace: Any = None

    @property
    def most(self) -> int:
        """Drafts that a round may have: none beyond the budget, whatever gamma is."""
        largest = self.gamma.largest if isinstance(self.gamma, AdaptiveGamma) else self.gamma
        return min(largest, max(self.max_new_tokens - 1, 0))

    @property
    def repeatable(self) -> bool:
        """Whether the same plan gives the same run again: nothing in it keeps a state of its own."""
        requests = len(self.prompts)
        return Processing(self.processors, requests).stateless and Ends(self.stops, self.criteria, requests).stateless

    @property
    def estimates(self) -> bool:
        """Whether the rounds can be decided without their p and q: nothing asks for these."""
        asked = self.record or self.trace is not None or self.constraint is not None
        return self.backend == "numpy" and self.rule.sampler in JUDGES and not asked

    def silent(self) -> Plan:
        """Return the plan of the same run without anybody watching."""
        return replace(self, streamers=None, trace=None)

    def start(self, exact: bool = False) -> Run:
        """Return a fresh run, or raise `SpecnbError` if its drafter, prompts or settings don't fit.

        exact: whether somebody will watch its rounds, and so the p and q of each have to be made.
        """
        requests = len(self.prompts)
        batch = Batch(self.prompts, self.max_new_tokens, self.padding)
        vocabulary = self.target.get_input_embeddings().num_embeddings
        batch.check_ids(vocabulary)
        processing = Processing(self.processors, requests)
        if not processing.stateless:
            self._refuse_whole_drafts()
        ends = Ends(self.stops, self.criteria, requests, self.target.device)
        streaming = Streaming(self.streamers, requests)
        seed, _ = keys(self.seed, 0, requests, batch.lengths)
        estimating = self.estimates and not exact and processing.stateless
        kind = Estimating if estimating else Chooser
        chooser = kind(self.backend, self.target.device, seed, self.sampling, requests, batch.rows, self.rule)
        cached = CachedModel(self.target, len(batch.rows), batch.size)
        if self.cache is not None and batch.rows.size:
            none = np.zeros(requests, np.int64)
            padding = none if self.cache_padding is None else self.cache_padding
            take_over(self.cache, cached, batch.prompt_lengths, padding)
        parsers = None if self.constraint is None else Parsers(self.constraint, batch, vocabulary)
        drafting = chooser if parsers is None else parsers.drafting(chooser)
        draft = NoDrafts(drafting)
        if self.drafter is not None and self.most:
            draft = self.drafter.start(batch, drafting, self.most, cached)
        if parsers is not None:
            draft, chooser = parsers.following(draft, drafting), parsers.judging(chooser)
        watchers = [] if self.trace is None else [Writer(self.trace, self._about())]
        if self.announce:
            streaming.begin(self.prompts)
        return Run(
            batch, cached, draft, chooser, self.gamma, self.most, processing, ends, streaming, self.record, watchers
        )

    def _refuse_whole_drafts(self) -> None:
        """Raise if something reads p behind a rejection, where processors that may keep a state aren't called."""
        if self.rule.sampler not in IN_TURN:
            raise SpecnbError(
                f"rule {self.rule.label} reads positions behind a rejection, and the logits processors may keep a "
                "state, which such positions would corrupt; expected rule 'token', 'match' or 'coupled'"
            )
        if self.trace is not None:
            raise SpecnbError(
                "trace has the rows of whole drafts, which logits processors that may keep a state aren't shown; "
                "expected no trace, or transformers' own processors"
            )

    def _about(self) -> dict[str, Any]:
        """Return what a trace says about its run."""
        seed = self.seed if np.ndim(self.seed) == 0 else np.asarray(self.seed).tolist()
        about = {"rule": self.rule.label, "lossless": self.rule.lossless, "gamma": self.most}
        about |= {"requests": len(self.prompts), "seed": seed if isinstance(seed, list) else int(seed)}
        return about | {"backend": self.backend, "sampling": repr(self.sampling)}


def rule_of(rule: str | Rule, drafter: Drafter | None) -> Rule:
    """Return the rule that judges the drafts; without a drafter each token is the target's own draw."""
    rule = rules.get(rule)
    if drafter is None and not rule.lossless:
        raise SpecnbError(f"rule {rule.label} is lossy and judges drafts, but drafter is None; expected a drafter")
    return rules.get("coupled") if drafter is None else rule
