"""What a run returns: the sequences, what was accepted where, and each round for inspection."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch

from specnb.decoding.choosing import Decision
from specnb.errors import SpecnbError
from specnb.rules import Decided, Rule


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
    target_calls, draft_calls: forwards, each for all requests that ran. seconds: wall time of the run.
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


@dataclass(frozen=True)
class Round:
    """One verification of one request: what was drafted, how much of it was kept, and what was emitted.

    position: absolute position of the first drafted token. draft: the proposed tokens. accepted: how many the
    verdict kept, also beyond an end-of-text. tokens: what was emitted.
    """

    row: int
    position: int
    draft: tuple[int, ...]
    accepted: int
    tokens: tuple[int, ...]

    @property
    def kinds(self) -> list[tuple[int, str]]:
        """Each token with what became of it: accepted, rejected, correction, bonus, or plain without a draft.

        Of the drafts that weren't kept only the judged one is listed; those behind it were never looked at.
        """
        shown = [(token, "accepted") for token in self.tokens[: self.accepted]]
        if self.accepted < len(self.draft) and len(self.tokens) > self.accepted:
            shown.append((self.draft[self.accepted], "rejected"))
        last = "plain" if not self.draft else "correction" if self.accepted < len(self.draft) else "bonus"
        return shown + [(token, last) for token in self.tokens[self.accepted :]]


def rounds_of(log: list[Logged]) -> list[Round]:
    """Return every round of every request, in order."""
    rounds = []
    for decision, counts, _, _ in log:
        columns = (decision.rows, decision.position, decision.draft, decision.limits, decision.accepted)
        lists = (values.tolist() for values in (*columns, decision.tokens, counts))
        rounds += [
            Round(row, start, tuple(draft[:limit]), accepted, tuple(tokens[:count]))
            for row, start, draft, limit, accepted, tokens, count in zip(*lists, strict=True)
        ]
    return rounds


@dataclass(eq=False, repr=False)
class Generation(Decided):
    """The output of `generate` for B requests.

    sequences: int64 [B, L], prompts without their padding and what was emitted, padded on the right.
    lengths: int64 [B], tokens of each row that count. prompt_lengths: int64 [B].
    stats: `Statistics`. rounds: every verification, in order. gamma, decided_by, backend: how it was decoded;
    `rule` is the label of the rule, `lossless` its claim.
    interrupted: True if the run was stopped from the keyboard; it then holds what had been emitted.
    """

    sequences: torch.Tensor
    lengths: torch.Tensor
    prompt_lengths: torch.Tensor
    stats: Statistics
    gamma: int
    decided_by: Rule
    backend: str
    interrupted: bool = False
    rounds: list[Round] = field(default_factory=list)

    def tokens(self, row: int = 0) -> list[int]:
        """Return the ids that a request emitted, without its prompt."""
        row = self._row(row)
        return self.sequences[row, self.prompt_lengths[row] : self.lengths[row]].tolist()

    def text(self, tokenizer: Any, *, prompt: bool = True) -> list[str]:
        """Return the text of each request, with or without its prompt.

        Parameters
        ----------
        tokenizer : anything with `decode(ids, skip_special_tokens=)`, as transformers' tokenizers.
        prompt : False leaves the prompts out.
        """
        starts = [0] * len(self.sequences) if prompt else self.prompt_lengths.tolist()
        rows = zip(self.sequences.tolist(), starts, self.lengths.tolist(), strict=True)
        return [tokenizer.decode(ids[start:end], skip_special_tokens=True) for ids, start, end in rows]

    def trace(self, row: int = 0) -> list[tuple[int, str]]:
        """Return a request's tokens with their kinds, the rejected drafts among them.

        Kinds: prompt, accepted, rejected, correction, bonus, plain (emitted by a round without drafts). Without
        the rejected ones, the tokens are the sequence.
        """
        row = self._row(row)
        prompt = self.sequences[row, : self.prompt_lengths[row]].tolist()
        rounds = (round_ for round_ in self.rounds if round_.row == row)
        return [(token, "prompt") for token in prompt] + [pair for round_ in rounds for pair in round_.kinds]

    def _row(self, row: int) -> int:
        """Return a row counted from the front; −1 is the last one."""
        B = len(self.sequences)
        if not isinstance(row, (int, np.integer)) or not -B <= row < B:
            raise SpecnbError(f"row is {row!r}; expected 0 … {B - 1}, one of the {B} requests")
        return int(row) % B

    def __repr__(self) -> str:
        rule = f"{self.rule!r}{'' if self.lossless else ' (lossy)'}"
        return (
            f"Generation(requests={len(self.sequences)}, emitted={int(self.stats.emitted.sum())}, "
            f"accepted={int(self.stats.accepted.sum())} of {int(self.stats.drafted.sum())} drafted, "
            f"rule={rule}, backend={self.backend!r}{', interrupted' if self.interrupted else ''})"
        )


def _ratio(numerator: np.ndarray, denominator: np.ndarray) -> np.ndarray:
    return np.divide(numerator, denominator, out=np.full(denominator.shape, np.nan), where=denominator > 0)
