"""Choosing by estimates: the same tokens in less time, where nobody asks for the distributions themselves.

Most draws and verdicts don't hang on the last digits of p and q, so estimates with a bound on their error tell them;
the contract's arithmetic makes only the rows of those that do. See `specnb.backends.numpy_estimates`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch

from specnb.backends.numpy_estimates import Estimate, block, coupled, drawn, estimate, judged
from specnb.backends.numpy_logits import LOG2_E, processed
from specnb.backends.numpy_words import ACCEPTING, FINAL, OWN, words
from specnb.decoding.choosing import Chooser, Decision, Proposal
from specnb.streams import draft_word

LONG = 1024
"""Ids of a row that repays being looked at alone: all rows of a batch are decided exactly in one call."""


SAMPLERS = ("verify", "verify_block", "verify_coupled")
"""How the rules that can be estimated are sampled."""


class Guess(NamedTuple):
    """Logits float32 [R, k, V] with the estimate of their softmax; the exact one is made when it is asked for."""

    logits: np.ndarray
    temperature: np.ndarray
    estimate: Estimate

    def exact(self, rows: Any = slice(None)) -> np.ndarray:
        """Return the contract's probabilities of some rows, float32 [n, k, V]."""
        return processed(self.logits[rows], (self.temperature[rows], None, None, None))


class Estimating(Chooser):
    """NumPy's chooser for the rules of `SAMPLERS`: for long rows at temperatures above 0 without filters.

    What it drafts has guesses for q, which no other chooser can read, and it returns no p. All else it does as
    `Chooser`.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        temperature, *filters = self.parameters
        self.simple = all(values is None for values in filters) and bool((temperature > 0).all())
        self._guesses: list[Guess] = []
        self._rooms: dict[int, np.ndarray] = {}

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
        start, *pair = draft_word(self.rule, position, index)
        word = words(self.live_seed, start, [tuple(pair)], len(position), self.rows)[:, 0].tolist()
        tokens = [drawn(row[0], one) for row, one in zip(guess.estimate.mass, word, strict=True)]
        if doubt := [r for r, token in enumerate(tokens) if token is None]:
            exact = self._some(doubt).draw(guess.exact(doubt)[:, 0], position[doubt], index)
            for r, token in zip(doubt, exact.tolist(), strict=True):
                tokens[r] = token
        return np.array(tokens)

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
        if self.rule.sampler == "verify_coupled":
            word = self._own_words(position, G + 1).tolist()
            decided = [coupled(r, row, p.estimate, word[r]) for r, row in enumerate(drafts)]
        else:
            counters = [(i, ACCEPTING) for i in range(G)] + [(0, FINAL)]
            word = words(self.live_seed, position, counters, len(drafts), self.rows).tolist()
            judge = block if self.rule.sampler == "verify_block" else judged
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

    def _own_words(self, position: np.ndarray, columns: int) -> np.ndarray:
        """Return the words [R, columns] of the positions themselves."""
        start, R = position & 0xFFFFFFFF, len(position)
        return np.concatenate([words(self.live_seed, start + i, [(0, OWN)], R, self.rows) for i in range(columns)], 1)

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
