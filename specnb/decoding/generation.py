"""What a run returns: the sequences, what was accepted where, and each round for inspection."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from specnb.decoding.arguments import check_methods
from specnb.decoding.rounds import Round, rounds_of
from specnb.decoding.statistics import Logged, Statistics
from specnb.errors import SpecnbError
from specnb.rules import Decided, Rule

if TYPE_CHECKING:
    from specnb.decoding.plan import Plan
    from specnb.decoding.replay import Replay
    from specnb.decoding.tables import RoundStrips

__all__ = ["Generation", "Logged", "Round", "Statistics", "rounds_of"]


@dataclass(eq=False, repr=False)
class Generation(Decided):
    """The output of `generate` for B requests.

    sequences: int64 [B, L], prompts without their padding and what was emitted, padded on the right.
    lengths: int64 [B], tokens of each row that count. prompt_lengths: int64 [B].
    stats: `Statistics`. rounds: every verification, in order. gamma (the largest, if it adapts), decided_by, backend:
    how it was decoded; `rule` is the label of the rule, `lossless` its claim.
    interrupted: True if the run was stopped from the keyboard; it then holds what had been emitted.
    plan: what the run was made from, and can be made from again. traced: the folder of its trace, if there is one.
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
    plan: Plan | None = None
    traced: Any = None

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
        check_methods("tokenizer", tokenizer, ("decode",), "one with decode, as transformers' tokenizers")
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
        return [(token, "prompt") for token in prompt] + [
            pair for round_ in self.rounds_of(row) for pair in round_.kinds
        ]

    def rounds_of(self, row: int = 0) -> list[Round]:
        """Return a request's own rounds, in order."""
        row = self._row(row)
        return [round_ for round_ in self.rounds if round_.row == row]

    def gammas(self, row: int = 0) -> list[int]:
        """Return how many tokens each round of a request drafted: γ, or less where a budget or a drafter ended."""
        return [len(round_.draft) for round_ in self.rounds_of(row)]

    def to_frame(self, by: str = "round") -> Any:
        """Return the run as a pandas DataFrame.

        by: "round", a line per verification of each request; "request", the counts of each request; "position", the
        acceptance at each position of the draft given that the drafts before it were accepted.
        """
        from specnb.decoding.tables import to_frame

        return to_frame(self, by)

    def strips(self, row: int = 0, tokenizer: Any = None) -> RoundStrips:
        """Return a request's rounds as strips of tokens, for notebooks and terminals.

        tokenizer: anything with `decode(ids)`; None shows ids.
        """
        from specnb.decoding.tables import round_strips

        return round_strips(self, row, tokenizer)

    def replay(self, round: int | Round = 0) -> Replay:
        """Return p, q, the random words and the verdict of a round, as they were.

        They come from the run's trace, if it has one; else the run is made again up to that round, with the same
        models, seed and batch, which gives the same bits.

        round: an index into `rounds`, or one of them.

        Raises
        ------
        SpecnbError : no such round; or the run can't be made again, because its processors or criteria keep a state
            of their own, and there is no trace.
        """
        from specnb.decoding.replay import replay

        return replay(self, round)

    def _row(self, row: int) -> int:
        """Return a row counted from the front; −1 is the last one."""
        B = len(self.sequences)
        if not isinstance(row, (int, np.integer)) or not -B <= row < B:
            raise SpecnbError(f"row is {row!r}; expected 0 … {B - 1}, one of the {B} requests")
        return int(row) % B

    def __getstate__(self) -> dict[str, Any]:
        """Return what travels in a pickle: everything but the plan, which holds the models."""
        return self.__dict__ | {"plan": None}

    def __repr__(self) -> str:
        rule = f"{self.rule!r}{'' if self.lossless else ' (lossy)'}"
        return (
            f"Generation(requests={len(self.sequences)}, emitted={int(self.stats.emitted.sum())}, "
            f"accepted={int(self.stats.accepted.sum())} of {int(self.stats.drafted.sum())} drafted, "
            f"rule={rule}, backend={self.backend!r}{', interrupted' if self.interrupted else ''})"
        )
