"""Logits in, tokens out: the arithmetic of the contract for the rows of a batch that are still running."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from specnb import backends
from specnb.arrays import to_numpy, to_torch
from specnb.errors import SpecnbError
from specnb.rules import Rule
from specnb.sampling import Sampling
from specnb.streams import draft_word
from specnb.verdict import Status

SHARED = (torch.float32, torch.int64)
"""What a model on the CPU usually brings, and NumPy takes as it is."""

OVERLAPS = {
    "token": np.minimum,
    "match": np.multiply,
    "coupled": lambda q, p: (np.minimum(q.cumsum(2), p.cumsum(2)) - np.maximum(q.cumsum(2) - q, p.cumsum(2) - p)).clip(
        0
    ),
}
"""What each token adds to the exact chance that a position's draft is accepted, by rule; q and p are [R, G, V]."""


@dataclass
class Proposal:
    """What a drafter proposes for the rows of a batch in one round.

    tokens: int64 [R, G] of the backend's kind, ids wherever they count.
    q: float [R, G, V] of the same kind, the distributions they were drawn from; None if all are one-hot.
    Or an estimating chooser's `Guesses`, which become that when somebody reads them.
    lengths: int64 [R] on the host, how many drafts of each row count.
    """

    tokens: Any
    q: Any
    lengths: np.ndarray


@dataclass(frozen=True)
class Decision:
    """What was drafted and decided for each running row in one round, on the host.

    rows: int64 [R], which requests. position: int64 [R], where the first draft stands. draft: int64 [R, G].
    limits: int64 [R], drafts that count. tokens: int64 [R, G+1] padded with −1. accepted, status: [R], as in
    `specnb.Verdict`.
    """

    rows: np.ndarray
    position: np.ndarray
    draft: np.ndarray
    limits: np.ndarray
    tokens: np.ndarray
    accepted: np.ndarray
    status: np.ndarray

    def check(self) -> None:
        """Raise `SpecnbError` if a row was no distribution, naming its request and position."""
        if not self.status.any() and self.draft.min(initial=0) >= 0:
            return
        undrawn = (self.draft < 0) & (np.arange(self.draft.shape[1]) < self.limits[:, None])
        if undrawn.any():
            r, i = (int(k) for k in np.argwhere(undrawn)[0])
            where, what = self.position[r] + i, "the draft's row has nothing to draw (NaN or infinite logits?)"
        elif self.status.any():
            r = int(np.flatnonzero(self.status)[0])
            names = ", ".join(flag.name or "" for flag in Status if flag & int(self.status[r]))
            where = self.position[r] + self.accepted[r]
            what = f"the rows verified up to there are no distributions: {names}"
        else:  # only a draft that doesn't count
            return
        raise SpecnbError(
            f"request {self.rows[r]}, position {where}: {what}; expected finite logits: check the model's dtype"
        )


@dataclass
class Chooser:
    """A backend, the seeds of the requests and one `Sampling`, applied to whichever rows still run.

    seed: int (request b keeps stream b), or int64 [B] with a key per request. rows: int64 [R], the requests
    that still run.
    """

    backend: str
    device: torch.device
    seed: Any
    sampling: Sampling
    batch: int
    rows: np.ndarray
    rule: Rule

    def __post_init__(self) -> None:
        if not isinstance(self.sampling, Sampling):
            raise SpecnbError(f"sampling is {self.sampling!r}; expected specnb.Sampling(...) or None")
        self.module = backends.load(self.backend, self.device.type)
        self.decide = backends.decider(self.module, self.rule)
        reference = np.zeros(0) if self.backend == "numpy" else torch.zeros(0, device=self.device)
        everyone = self.sampling.parameters(self.batch, 1, reference)
        self.parameters = self.sampling.arguments(self.backend, everyone)
        self._seeds = self.seed if isinstance(self.seed, int) else self.array(to_torch(self.seed))
        self._q: Any = None
        self.keep(np.arange(len(self.rows)))

    @property
    def greedy(self) -> np.ndarray:
        """Which of the running rows have temperature 0, bool [R]."""
        return to_numpy(self.live_parameters[0]) == 0

    def with_sampling(self, sampling: Sampling | None) -> Chooser:
        """Return a chooser with the same seeds and rows, and another way from logits to probabilities."""
        return replace(self, sampling=self.sampling if sampling is None else sampling)

    def keep(self, index: np.ndarray) -> None:
        """Let only these of the running rows go on."""
        self.rows = self.rows[index]
        self.all_run = len(self.rows) == self.batch
        chosen = self.array(torch.from_numpy(self.rows))
        self.live_parameters = [values if values is None else values[chosen] for values in self.parameters]
        self.live_seed = self._seeds if isinstance(self._seeds, int) else self._seeds[chosen]

    def array(self, tensor: torch.Tensor) -> Any:
        """Return a tensor as the backend's kind of array, on its device."""
        if self.backend != "numpy":
            return tensor.to(self.device)
        return tensor.numpy() if tensor.is_cpu and tensor.dtype in SHARED else to_numpy(tensor)

    def tensor(self, array: Any) -> torch.Tensor:
        """Return one of the backend's arrays as a tensor."""
        return torch.from_numpy(array) if self.backend == "numpy" else array

    def probabilities(self, logits: torch.Tensor, first: int = 0) -> Any:
        """Return the processed distributions float32 [R, k, V] of logits [R, k, V] behind drafts `first` … of a round.

        Only a constraint asks which columns they are.
        """
        R, k, V = logits.shape
        parameters = self.live_parameters
        if k > 1:
            repeat = np.repeat if self.backend == "numpy" else torch.repeat_interleave
            parameters = [values if values is None else repeat(values, k) for values in parameters]
        flat = self.array(logits).reshape(R * k, V)
        return self.module.probabilities(flat, *parameters).reshape(R, k, V)

    def draft(self, logits: torch.Tensor, position: np.ndarray, index: int, gamma: int) -> Any:
        """Draw draft `index` of a step that starts at `position` [R] from logits [R, V], and keep its row q.

        The rows of a step's drafts, gamma at most, are in `drafted` until the next step.
        """
        probs = self.probabilities(logits[:, None])[:, 0]
        if self._q is None:
            shape = (len(probs), gamma, probs.shape[1])
            self._q = probs.new_empty(shape) if torch.is_tensor(probs) else np.empty(shape, probs.dtype)
        self._q[: len(probs), index] = probs
        return self.draw(probs, position, index)

    def drafted(self, drafts: int) -> Any:
        """Return the rows q [R, drafts, V] of this step, as a proposal has them."""
        return self._q[: len(self.rows), :drafts]

    def judge(self, proposal: Proposal, logits: torch.Tensor, position: np.ndarray) -> tuple[Any, Decision]:
        """Return p, float [R, G+1, V], of the target's logits, and what `verify` decides on it."""
        p = self.probabilities(logits)
        return p, self.verify(proposal, p, position)

    def draw(self, probs: Any, position: np.ndarray, index: int) -> Any:
        """Draw draft `index` of a step that starts at `position` [R] from probs [R, V]."""
        position, *word = draft_word(self.rule, position, index)
        if self.all_run or not isinstance(self.live_seed, int):
            return self.module.draw(probs, self.live_seed, self._host(position), *word)
        everyone = (self._among_all(probs, 0), self.live_seed, self._among_all(self._host(position), 0))
        return self.module.draw(*everyone, *word)[self.array(torch.from_numpy(self.rows))]

    def nothing(self) -> Proposal:
        """Return a proposal without drafts."""
        R = len(self.rows)
        tokens = torch.zeros(R, 0, dtype=torch.int64, device=self.device)
        return Proposal(self.array(tokens), None, np.zeros(R, np.int64))

    def verify(self, proposal: Proposal, p: Any, position: np.ndarray) -> Decision:
        """Decide on a proposal whose first draft stands at `position` [R]; p is float [R, G+1, V]."""
        q = proposal.q if self.rule.reads_q else None
        arrays: Any = (proposal.tokens, q, p, self._host(proposal.lengths), self._host(position))
        spread = not self.all_run and isinstance(self.live_seed, int)
        if spread:
            arrays = [values if values is None else self._among_all(values, 0) for values in arrays]
        draft, q, p, lengths, start = arrays
        verdict = self.decide(draft, q, p, lengths, None, self.live_seed, start, None)
        if self.backend != "numpy":
            verdict, draft = [to_numpy(values) for values in verdict], to_numpy(proposal.tokens)
        if spread:
            verdict, draft = [values[self.rows] for values in verdict], to_numpy(proposal.tokens)
        return Decision(self.rows, position, draft, proposal.lengths, *verdict)

    def overlap(self, proposal: Proposal, p: Any) -> np.ndarray:
        """Return the exact chance float64 [R, G] that the rule accepts a draft at each position."""
        draft, p = to_numpy(proposal.tokens), to_numpy(p)[:, :-1].astype(np.float64)
        if proposal.q is None:
            return np.take_along_axis(p, draft[:, :, None], 2)[:, :, 0]
        q = to_numpy(proposal.q)
        V = min(q.shape[2], p.shape[2])
        return OVERLAPS[self.rule.name](q[:, :, :V].astype(np.float64), p[:, :, :V]).sum(2)

    def _host(self, values: np.ndarray) -> Any:
        return values if self.backend == "numpy" else torch.from_numpy(values).to(self.device)

    def _among_all(self, values: Any, fill: float) -> Any:
        """Return rows [R, ...] in their places among all requests [B, ...].

        With one seed for the batch a request's stream is its row, so it has to be in it.
        """
        shape = (self.batch, *values.shape[1:])
        if torch.is_tensor(values):
            everyone = values.new_full(shape, fill)
            everyone[torch.from_numpy(self.rows).to(values.device)] = values
        else:
            everyone = np.full(shape, fill, values.dtype)
            everyone[self.rows] = values
        return everyone


def choose_backend(name: str | None, device: torch.device, rule: Rule) -> str:
    """Return the backend that decides: the one asked for, else the fastest for the target's device.

    On a CPU that is NumPy: the arithmetic of a whole round took torch 1.1 to 4 times as long for V from 2^11 to
    2^17 (one thread). The bits are the same.
    """
    if name is not None:
        backends.load(name, device.type)  # or raise
        return name
    return "numpy" if device.type == "cpu" else backends.default_name(torch.empty(0, device=device), rule)
