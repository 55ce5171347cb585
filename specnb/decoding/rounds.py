"""Each verification of each request, for inspection."""

from __future__ import annotations

from dataclasses import dataclass

from specnb.decoding.statistics import Logged


@dataclass(frozen=True)
class Round:
    """One verification of one request: what was drafted, how much of it was kept, and what was emitted.

    position: absolute position of the first drafted token. draft: the proposed tokens. accepted: how many the
    verdict kept, also beyond an end-of-text. tokens: what was emitted. step: which round of the batch it was part of.
    """

    row: int
    position: int
    draft: tuple[int, ...]
    accepted: int
    tokens: tuple[int, ...]
    step: int = 0

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
    for step, (decision, counts, _, _) in enumerate(log):
        columns = (decision.rows, decision.position, decision.draft, decision.limits, decision.accepted)
        lists = (values.tolist() for values in (*columns, decision.tokens, counts))
        rounds += [
            Round(row, start, tuple(draft[:limit]), accepted, tuple(tokens[:count]), step)
            for row, start, draft, limit, accepted, tokens, count in zip(*lists, strict=True)
        ]
    return rounds
