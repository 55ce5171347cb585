"""Choosing by estimates: the same tokens in less time, where nobody asks for the distributions themselves.

Most draws and verdicts don't hang on the last digits of p and q, so estimates with a bound on their error tell them;
the contract's arithmetic makes only the rows of those that do. See `specnb.backends.numpy_estimates`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import torch

from specnb.backends.numpy_estimates import Estimate, all_drawn, block, coupled, estimate, judged
from specnb.backends.numpy_logits import LOG2_E, processed
from specnb.backends.numpy_words import ACCEPTING, DRAFTING, FINAL, OWN, words
from specnb.decoding.choosing import Chooser, Decision, Proposal
from specnb.sampling import Sampling

LONG = 1024
"""Ids of a row that repays being looked at alone: all rows of a batch are decided exactly in one call."""


JUDGES = {"verify": judged, "verify_block": block, "verify_coupled": coupled}
"""What tells verdicts of the rules that can be estimated, by their samplers."""


class Guess(NamedTuple):
    """Logits float32 [R, k, V] with the estimate of their softmax; the exact one is made when it is asked for."""

    logits: np.ndarray
    temperature: np.ndarray
    estimate: Estimate

    def exact(self, rows: Any = slice(None)) -> np.ndarray:
        """Return the contract's probabilities of some rows, float32 [n, k, V]."""
        return processed(self.logits[rows], (self.temperature[rows], None, None, None))


@dataclass
class StepWords:
    """The words of a step, shared by whoever drafts and judges: drafting[i][r] and judging[r], ints.

    judging: gamma words for the drafts, then the final token's; or, for the rule coupled, those of the positions.
    """

    place: Any = None
    gamma: int = 0
    drafting: list[list[int]] = field(default_factory=list)
    judging: list[list[int]] = field(default_factory=list)


class Estimating(Chooser):
    """NumPy's chooser for the rules of `JUDGES`: for long rows at temperatures above 0 without filters.

    What it drafts has guesses for q, which no other chooser can read, and it returns no p. All else it does as
    `Chooser`.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        temperature, *filters = self.parameters
        self.simple = all(values is None for values in filters) and bool((temperature > 0).all())
        self._guesses: list[Guess] = []
        self._rooms: dict[int, np.ndarray] = {}
        self._step = StepWords()

    def with_sampling(self, sampling: Sampling | None) -> Estimating:
        """Return a chooser that shares the words of a step, and has another way from logits to probabilities."""
        other: Any = super().with_sampling(sampling)
        other._step = self._step
        return other

    def keep(self, index: np.ndarray) -> None:
        """Let only these of the running rows go on."""
        super().keep(index)
        temperature: Any = self.live_parameters[0]
        with np.errstate(divide="ignore"):  # temperature 0, which isn't guessed
            self._scale = (LOG2_E / temperature).astype(np.float32)[:, None, None]

    def draft(self, logits: torch.Tensor, position: np.ndarray, index: int, gamma: int) -> Any:
        """Draw draft `index` of a step that starts at `position` [R] from logits [R, V], and keep a guess of its q."""
        if not self.simple or logits.shape[1] < LONG:
            return super().draft(logits, position, index, gamma)
        guess = self._guess(logits[:, None], index)
        self._guesses[index:] = [guess]
        word = self._words(position, gamma).drafting[index]
        tokens = all_drawn(guess.estimate.mass[:, 0], word)
        if (doubt := np.flatnonzero(tokens < 0)).size:
            tokens[doubt] = self._some(doubt).draw(guess.exact(doubt)[:, 0], position[doubt], index)
        return tokens

    def drafted(self, drafts: int) -> Any:
        """Return the guesses of this step's rows q, or the rows themselves."""
        return tuple(self._guesses[:drafts]) if self._guesses else super().drafted(drafts)

    def judge(self, proposal: Proposal, logits: torch.Tensor, position: np.ndarray) -> tuple[Any, Decision]:
        """Decide on a proposal by the target's logits [R, G+1, V], and return nothing for p."""
        q, V = proposal.q if self.rule.reads_q else None, logits.shape[2]
        drafts = [row[:n] for row, n in zip(proposal.tokens.tolist(), proposal.lengths.tolist(), strict=True)]
        guessed = (q is None and self.rule.sampler != "verify_block") or (
            isinstance(q, tuple) and all(one.logits.shape[2] == V for one in q)
        )
        if self.simple and guessed and V >= LONG and all(0 <= token < V for row in drafts for token in row):
            return None, self._guessed(proposal, drafts, q, self._guess(logits, 0), position)
        q = np.concatenate([one.exact() for one in q], 1) if isinstance(q, tuple) else q
        return super().judge(replace(proposal, q=q), logits, position)

    def _guessed(self, proposal: Proposal, drafts: list[list[int]], q: Any, p: Guess, position: np.ndarray) -> Decision:
        """Return what `verify` decides, row by row, and exactly where that is in doubt."""
        G, estimates = proposal.tokens.shape[1], None if q is None else [one.estimate for one in q]
        judge = JUDGES[self.rule.sampler]
        word = self._words(position, G).judging
        decided = [judge(r, row, estimates, p.estimate, word[r]) for r, row in enumerate(drafts)]
        doubt = [r for r, (_, token) in enumerate(decided) if token is None]
        decided = [(0, -1) if token is None else (n, token) for n, token in decided]
        pairs = zip(drafts, decided, strict=True)
        tokens = np.array([[*row[:n], token] + [-1] * (G - n) for row, (n, token) in pairs])
        n, status = np.array([n for n, _ in decided]), np.zeros(len(drafts), np.int32)
        if doubt:
            exact_q = None if q is None else np.concatenate([one.exact(doubt) for one in q], 1)
            some = Proposal(proposal.tokens[doubt], exact_q, proposal.lengths[doubt])
            exact = self._some(doubt).verify(some, p.exact(doubt), position[doubt])
            tokens[doubt], n[doubt], status[doubt] = exact.tokens, exact.accepted, exact.status
        return Decision(self.rows, position, proposal.tokens, proposal.lengths, tokens, n, status)

    def _words(self, position: np.ndarray, gamma: int) -> StepWords:
        """Return the words of the step that starts at `position` [R] and has gamma drafts at most, made once."""
        step, place = self._step, (position.tobytes(), self.rows.tobytes())
        if step.place == place and step.gamma >= gamma:
            return step
        R, seed = len(position), self.live_seed
        if self.rule.sampler == "verify_coupled":
            start = position & 0xFFFFFFFF
            own = [words(seed, start + i, [(0, OWN)], R, self.rows)[:, 0] for i in range(gamma + 1)]
            step.drafting, step.judging = [word.tolist() for word in own], np.stack(own, 1).tolist()
        else:
            counters = [(i, purpose) for purpose in (DRAFTING, ACCEPTING) for i in range(gamma)] + [(0, FINAL)]
            both = words(seed, position, counters, R, self.rows)
            step.drafting, step.judging = both[:, :gamma].T.tolist(), both[:, gamma:].tolist()
        step.place, step.gamma = place, gamma
        return step

    def _some(self, index: Any) -> Chooser:
        """Return an exact chooser for some of the running rows."""
        return Chooser(self.backend, self.device, self.seed, self.sampling, self.batch, self.rows[index], self.rule)

    def _guess(self, logits: torch.Tensor, index: int) -> Guess:
        """Return the guess for logits [R, k, V]; index tells apart which guesses of a step need room of their own."""
        z = self.array(logits).astype(np.float32, copy=False)
        room = self._rooms.get(index)
        if room is None or room.shape[0] < z.shape[0] or room.shape[1] < z.shape[1]:
            room = self._rooms[index] = np.empty(z.shape, np.float32)
        temperature: Any = self.live_parameters[0]
        return Guess(z, temperature, estimate(z, self._scale, room[: z.shape[0], : z.shape[1]]))
