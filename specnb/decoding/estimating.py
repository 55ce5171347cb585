"""Choosing by estimates: the same tokens in less time, where nobody asks for the distributions themselves.

Most draws and verdicts don't hang on the last digits of p and q, so estimates with a bound on their error tell them;
the contract's arithmetic makes only the rows of those that do. See `specnb.backends.numpy_estimates`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import torch

from specnb.backends.bounds import all_drawn
from specnb.backends.numpy_estimates import (
    Estimate,
    Parameters,
    block_verdict,
    coupled_verdict,
    estimate,
    token_verdict,
)
from specnb.backends.numpy_logits import processed
from specnb.backends.numpy_words import ACCEPTING, DRAFTING, FINAL, OWN, words
from specnb.decoding.choosing import Chooser, Decision, Proposal
from specnb.sampling import Sampling

LONG = 1024
"""Ids of a row from which on estimates repay, also in a large batch."""


JUDGES = {"verify": token_verdict, "verify_block": block_verdict, "verify_coupled": coupled_verdict}
"""By the sampler of a rule: what tells its verdicts from estimates."""


class Guess(NamedTuple):
    """Logits float32 [R, k, V] with the estimate of their softmax; the exact one is made when it is asked for."""

    logits: np.ndarray
    parameters: list[Any]
    estimate: Estimate

    def exact(self, rows: Any = slice(None)) -> np.ndarray:
        """Return the contract's probabilities of some rows, float32 [n, k, V]."""
        return processed(self.logits[rows], [values if values is None else values[rows] for values in self.parameters])


@dataclass(frozen=True)
class Guesses:
    """The guesses [R, 1, V] of a step's drafts, in the place of their rows q: as an array it is the exact ones."""

    each: tuple[Guess, ...]

    def exact(self, rows: Any = slice(None)) -> np.ndarray:
        """Return the contract's probabilities of some rows, float32 [n, G, V]."""
        return np.concatenate([one.exact(rows) for one in self.each], 1)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return self.exact().astype(dtype or np.float32, copy=False)

    def __getitem__(self, index: Any) -> Any:
        return self.exact()[index]


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
    """NumPy's chooser for the rules of `JUDGES`, where rows are long.

    What it drafts has guesses for q, and `judge` returns no p where it guesses. All else it does as `Chooser`.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self._guesses: list[Guess] = []
        self._rooms: dict[Any, np.ndarray] = {}
        self._step = StepWords()

    def with_sampling(self, sampling: Sampling | None) -> Estimating:
        """Return a chooser that shares the words of a step, and has another way from logits to probabilities."""
        other: Any = super().with_sampling(sampling)
        other._step = self._step
        return other

    def keep(self, index: np.ndarray) -> None:
        """Let only these of the running rows go on."""
        super().keep(index)
        self._how = Parameters.of(*self.live_parameters)

    def draft(self, logits: torch.Tensor, position: np.ndarray, index: int, gamma: int) -> Any:
        """Draw draft `index` of a step that starts at `position` [R] from logits [R, V], and keep a guess of its q."""
        if logits.shape[1] < LONG:
            self._guesses.clear()
            return super().draft(logits, position, index, gamma)
        guess = self._guess(self._float32(logits)[:, None].copy(), index)  # the model may reuse what it gave
        self._guesses[index:] = [guess]
        word = self._words(position, gamma).drafting[index]
        tokens = all_drawn(guess.estimate.mass[:, 0], word)
        if -1 in tokens.tolist():
            doubt = np.flatnonzero(tokens < 0)
            tokens[doubt] = self._some(doubt).draw(guess.exact(doubt)[:, 0], position[doubt], index)
        return tokens

    def drafted(self, drafts: int) -> Any:
        """Return the guesses of this step's rows q, or the rows themselves."""
        return Guesses(tuple(self._guesses[:drafts])) if self._guesses else super().drafted(drafts)

    def judge(self, proposal: Proposal, logits: torch.Tensor, position: np.ndarray) -> tuple[Any, Decision]:
        """Decide on a proposal by the target's logits [R, G+1, V], and return nothing for p."""
        q, V = proposal.q if self.rule.reads_q else None, logits.shape[2]
        drafts = [row[: max(n, 0)] for row, n in zip(proposal.tokens.tolist(), proposal.lengths.tolist(), strict=True)]
        guessed = (q is None and self.rule.sampler != "verify_block") or (
            isinstance(q, Guesses) and all(one.logits.shape[2] == V for one in q.each)
        )
        if guessed and V >= LONG and all(0 <= token < V for row in drafts for token in row):
            p = self._guess(self._float32(logits), "target")
            return None, self._guessed(proposal, drafts, q, p, position)
        q = q.exact() if isinstance(q, Guesses) else q
        return super().judge(replace(proposal, q=q), logits, position)

    def _guessed(
        self, proposal: Proposal, drafts: list[list[int]], q: Guesses | None, p: Guess, position: np.ndarray
    ) -> Decision:
        """Return what `verify` decides, row by row, and exactly where that is in doubt."""
        G = proposal.tokens.shape[1]
        estimates = None if q is None else [one.estimate for one in q.each]
        judge = JUDGES[self.rule.sampler]
        word = self._words(position, G).judging
        decided = [judge(r, row, estimates, p.estimate, word[r]) for r, row in enumerate(drafts)]
        doubt = [r for r, (_, token) in enumerate(decided) if token is None]
        decided = [(0, -1) if token is None else (n, token) for n, token in decided]
        pairs = zip(drafts, decided, strict=True)
        tokens = np.array([[*row[:n], token] + [-1] * (G - n) for row, (n, token) in pairs])
        n, status = np.array([n for n, _ in decided]), np.zeros(len(drafts), np.int32)
        if doubt:
            some = Proposal(proposal.tokens[doubt], None if q is None else q.exact(doubt), proposal.lengths[doubt])
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

    def _guess(self, z: np.ndarray, room: Any) -> Guess:
        """Return the guess for logits float32 [R, k, V]; room tells apart what has to be kept at the same time."""
        return Guess(z, self.live_parameters, estimate(z, self._how, self._room(room, z.shape)))

    def _room(self, name: Any, shape: tuple[int, ...]) -> np.ndarray:
        """Return an array that is the same for a name, as far as it fits; a batch only gets smaller."""
        room = self._rooms.get(name)
        if room is None or room.shape[2] != shape[2] or room.shape[0] < shape[0] or room.shape[1] < shape[1]:
            room = self._rooms[name] = np.empty(shape, np.float32)
        return room[: shape[0], : shape[1]]

    def _float32(self, logits: torch.Tensor) -> np.ndarray:
        """Return logits as NumPy's float32, those beyond it as infinite."""
        z = self.array(logits)
        if z.dtype == np.float32:
            return z
        with np.errstate(over="ignore"):
            return z.astype(np.float32)
