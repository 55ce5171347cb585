"""One run: draft, verify all drafts in one forward, commit, roll back, repeat.

Invariant: the target's cache holds committed − 1 tokens of each request. The one that it lacks is fed first in
the next forward, together with the drafts.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from specnb.decoding.adaptive import AdaptiveGamma
from specnb.decoding.batch import Batch
from specnb.decoding.cache import CachedModel
from specnb.decoding.choosing import Chooser, Decision, Proposal
from specnb.decoding.ends import Ends
from specnb.decoding.judging import judge_in_turn, process_all
from specnb.decoding.processing import Processing
from specnb.decoding.statistics import Logged
from specnb.decoding.streaming import Streaming
from specnb.drafters import DraftRun

NARROW = (torch.bfloat16, torch.float16)
CLOSE = 16
"""Rounding of a 16-bit logit in units of its dtype's epsilon times the logit: several sums, each rounded."""

Watcher = Callable[[Logged, Proposal, Any], None]
"""Is shown each round before anything of it is forgotten: what happened, the proposal with its q, and p [R, G+1, V]."""


@dataclass
class Run:
    """What a run consists of, and the log of its rounds.

    most: drafts that a round may have, whatever gamma is. accepted, judged: int64 [B], each request's own history.
    """

    batch: Batch
    target: CachedModel
    draft: DraftRun
    chooser: Chooser
    gamma: int | AdaptiveGamma
    most: int
    processing: Processing
    ends: Ends
    streaming: Streaming
    record: bool
    watchers: list[Watcher] = field(default_factory=list)
    log: list[Logged] = field(default_factory=list)
    target_seconds: float = 0.0
    draft_seconds: float = 0.0
    close_calls: list[tuple[int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.accepted, self.judged = (np.zeros(len(self.batch.lengths), np.int64) for _ in range(2))

    def round(self) -> int:
        """Draft, verify, commit and roll back once for every request that runs; return how much was emitted."""
        batch, start = self.batch, self.batch.live_lengths
        proposal = self._propose()
        logits = self._logits(proposal, start)
        p, decision = self._judge(proposal, logits, start)
        decision.check()

        counts, ended = self.ends.cut(batch.rows, batch.shown, decision.tokens, decision.accepted + 1)
        overlap = self.chooser.overlap(proposal, p) if self.record else None
        self._note_close_calls(logits, start, counts)
        logged = Logged(decision, counts, ended, overlap)
        self.log.append(logged)
        for watch in self.watchers:
            watch(logged, proposal, p)
        batch.commit(decision.tokens, counts)
        self.streaming.put(batch.rows, decision.tokens, counts)
        self._remember(decision, counts)
        self._roll_back(ended)
        return int(counts.sum())

    def end(self) -> None:
        """Close what is still open: what watches the rounds, and streamers."""
        for watch in self.watchers:
            getattr(watch, "close", lambda: None)()
        self.streaming.end()

    def _propose(self) -> Proposal:
        begun = time.perf_counter()
        proposal = self.draft.propose(self.batch, np.minimum(self._limits(), self.batch.remaining - 1))
        self.draft_seconds += time.perf_counter() - begun
        return proposal

    def _limits(self) -> Any:
        """Return gamma of each running row."""
        if not isinstance(self.gamma, AdaptiveGamma):
            return self.most
        rows = self.batch.rows
        pairs = zip(self.accepted[rows], self.judged[rows], strict=True)
        return np.minimum([self.gamma(*pair) for pair in pairs], self.most)

    def _logits(self, proposal: Proposal, start: np.ndarray) -> torch.Tensor:
        """Return the target's logits [R, G+1, V] after each row's text and after each of its drafts."""
        begun, target, drafted = time.perf_counter(), self.target, proposal.tokens.shape[1]
        known = torch.from_numpy(self.batch.since(target.seen)).to(target.device)
        fed = torch.cat([known, self.chooser.tensor(proposal.tokens)], 1)
        logits = target.logits(fed, start + drafted, keep=drafted + 1)
        self.target_seconds += time.perf_counter() - begun
        return logits

    def _judge(self, proposal: Proposal, logits: torch.Tensor, start: np.ndarray) -> tuple[Any, Decision]:
        """Return p [R, G+1, V] and what was decided on it."""
        if self.processing.any and not self.processing.stateless:
            return judge_in_turn(self.batch, self.chooser, self.processing, self.ends, proposal, logits, start)
        if self.processing.any:
            logits = process_all(self.batch, self.chooser, self.processing, proposal, logits)
        return self.chooser.judge(proposal, logits, start)

    def _note_close_calls(self, logits: torch.Tensor, start: np.ndarray, counts: np.ndarray) -> None:
        """Note where a greedy choice in 16 bits hangs on the order of its sums."""
        if logits.dtype not in NARROW or logits.shape[2] < 2 or not (greedy := self.chooser.greedy).any():
            return
        first, second = logits.float().topk(2).values.unbind(2)  # [R, G+1]
        near = (first - second <= CLOSE * torch.finfo(logits.dtype).eps * first.abs()).cpu().numpy()
        near &= (np.arange(near.shape[1]) < counts[:, None]) & greedy[:, None]
        rows = self.batch.rows
        self.close_calls += [(int(rows[r]), int(start[r] + i)) for r, i in np.argwhere(near)]

    def _remember(self, decision: Decision, counts: np.ndarray) -> None:
        """Count what a request's own drafts came to."""
        self.accepted[decision.rows] += np.minimum(decision.accepted, counts)
        self.judged[decision.rows] += np.minimum(decision.limits, decision.accepted + 1)

    def _roll_back(self, ended: np.ndarray) -> None:
        """Forget rejected drafts, and let the requests go that are complete."""
        batch, cached = self.batch, self.batch.live_lengths - 1
        self.target.rollback(cached)
        self.draft.rollback(cached)
        on = ~ended & (batch.remaining > 0)
        if not on.all():
            self.streaming.end(batch.rows[~on])
            for part in (batch, self.target, self.draft, self.chooser):
                part.keep(np.flatnonzero(on))
