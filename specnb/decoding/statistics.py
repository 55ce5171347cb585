"""What a run counts: drafted, accepted, emitted and committed tokens, per request and per position."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from specnb.decoding.choosing import Decision


class Logged(NamedTuple):
    """One round as it happened: the decision, tokens emitted [R], rows cut at an end-of-text [R], overlap."""

    decision: Decision
    counts: np.ndarray
    ended: np.ndarray
    overlap: np.ndarray | None


@dataclass(eq=False)
class Statistics:
    """Counts over a run, per request [B] and per position of the draft [B, gamma].

    No round drafts more than max_new_tokens − 1; gamma stands for that where it is smaller.

    Everything is cut where a request ends: drafts beyond its last token count nowhere.

    drafted: tokens proposed. accepted: drafts that are in the output. emitted: tokens in the output.
    rounds: verifications of the request. In a round that nothing cuts short, emitted = accepted + 1.
    reached[b, i]: rounds in which draft i was judged, that is, all drafts before it were accepted.
    accepted_at[b, i]: rounds in which it was accepted; accepted_at/reached is the acceptance at position i
    given that the drafts before it were accepted (not the marginal).
    overlap_at[b, i]: sum over the reached rounds of the exact chance to accept, Σ min(p, q) (rule `match`:
    Σ p·q; `coupled`: the shared part of a token's two intervals); recorded only with record=True.
    close_calls: (request, position) of each emitted token at which a greedy target in 16 bits had two largest logits
    within its rounding: there the same sums in another order, as in plain decoding, may choose another token.
    committed: tokens that the request consists of, its prompt included; None where nobody set it.
    target_calls, draft_calls: forwards, each for all requests that ran. target_seconds, draft_seconds: wall time
    in them (drafting includes drawing; a GPU's forwards are waited for by whoever reads them). seconds: wall time of
    the run.
    """

    drafted: np.ndarray
    accepted: np.ndarray
    emitted: np.ndarray
    rounds: np.ndarray
    reached: np.ndarray
    accepted_at: np.ndarray
    overlap_at: np.ndarray | None = None
    target_calls: int = 0
    draft_calls: int = 0
    seconds: float = 0.0
    target_seconds: float = 0.0
    draft_seconds: float = 0.0
    committed: np.ndarray | None = None
    close_calls: list[tuple[int, int]] = field(default_factory=list)

    @classmethod
    def of(cls, log: list[Logged], batch: int, gamma: int, record: bool) -> Statistics:
        """Return the statistics of a run's rounds."""
        drafted, accepted, emitted, rounds = (np.zeros(batch, np.int64) for _ in range(4))
        reached, accepted_at = (np.zeros((batch, gamma), np.int64) for _ in range(2))
        overlap_at = np.zeros((batch, gamma)) if record else None
        stats = cls(drafted, accepted, emitted, rounds, reached, accepted_at, overlap_at)
        for logged in log:
            stats._add(logged)
        return stats

    def _add(self, logged: Logged) -> None:
        decision, counts, ended, overlap = logged
        rows, limits, kept = decision.rows, decision.limits, np.minimum(decision.accepted, counts)
        judged = np.minimum(limits, counts)
        self.drafted[rows] += np.where(ended, judged, limits)
        self.accepted[rows] += kept
        self.emitted[rows] += counts
        self.rounds[rows] += 1
        columns = np.arange(decision.draft.shape[1])
        reached = columns < judged[:, None]
        self.reached[rows, : len(columns)] += reached
        self.accepted_at[rows, : len(columns)] += columns < kept[:, None]
        if self.overlap_at is not None and overlap is not None:
            self.overlap_at[rows, : len(columns)] += np.where(reached, overlap, 0)

    @property
    def acceptance(self) -> np.ndarray:
        """Acceptance at each position given that it was reached, float64 [gamma], over all requests; else NaN."""
        return _ratio(self.accepted_at.sum(0), self.reached.sum(0))

    @property
    def expected_acceptance(self) -> np.ndarray | None:
        """What `acceptance` estimates, averaged over the same reached rows: the mean of 1 − TV(p, q)."""
        return None if self.overlap_at is None else _ratio(self.overlap_at.sum(0), self.reached.sum(0))

    @property
    def tokens_per_round(self) -> float:
        """Emitted tokens per verification of a request."""
        return float(self.emitted.sum() / max(1, self.rounds.sum()))

    @property
    def tokens_per_second(self) -> float:
        """Emitted tokens of all requests per second of wall time."""
        return float(self.emitted.sum() / self.seconds) if self.seconds else 0.0


def _ratio(numerator: np.ndarray, denominator: np.ndarray) -> np.ndarray:
    return np.divide(numerator, denominator, out=np.full(denominator.shape, np.nan), where=denominator > 0)
