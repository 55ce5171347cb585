"""A constraint in the loop: it masks the logits of drafts and of the target, and rolls back with the cache.

Nothing else knows of it. The drafter draws through one `Chooser` that masks q, the verdict is made by another that
masks p, and what was committed after each round moves the parsers.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from specnb.arrays import to_numpy
from specnb.decoding.arguments import check_constraint
from specnb.decoding.choosing import Chooser, Decision, Proposal
from specnb.decoding.grammar import Constraint, Matcher
from specnb.errors import SpecnbError

if TYPE_CHECKING:
    from specnb.decoding.batch import Batch
    from specnb.drafters.protocol import DraftRun


class Parser:
    """One request's place in its constraint: a committed text, and a path of drafts behind it.

    A mask is computed once for each place, whether drafting, verification or both ask for it.
    """

    def __init__(self, matcher: Matcher) -> None:
        self.matcher = matcher
        self.path: list[int] = []
        self.masks: dict[int, np.ndarray] = {}

    def mask(self, path: list[int]) -> np.ndarray | None:
        """Return which ids may follow a path of drafts, bool [V], or None if the path itself isn't admitted."""
        depth = len(path)
        if depth not in self.masks or self.path[:depth] != path:
            if not self.go(path):
                return None
            self.masks[depth] = self.matcher.mask()
        return self.masks[depth]

    def go(self, path: list[int]) -> bool:
        """Move to the end of a path of drafts; stay where it leaves the constraint, and return False."""
        common = next((i for i, pair in enumerate(zip(self.path, path, strict=False)) if pair[0] != pair[1]), None)
        common = min(len(self.path), len(path)) if common is None else common
        if common < len(self.path):
            self.matcher.rollback(len(self.path) - common)
            del self.path[common:]
            self.masks = {depth: mask for depth, mask in self.masks.items() if depth <= common}
        for token in path[common:]:
            if not self.matcher.consume(token):
                return False
            self.path.append(token)
        return True

    def commit(self, tokens: list[int]) -> bool:
        """Make emitted tokens part of the committed text: rejected drafts are rolled back, the others stay."""
        if not self.go(tokens):
            return False
        here = self.masks.get(len(tokens))
        self.path, self.masks = [], {} if here is None else {0: here}
        return True


class Parsers:
    """The parsers of all requests of a batch, and what they have to know of the round that is running.

    committed: int64 [B], tokens of each request that its parser has committed, prompt included. drawn: a list of
    int64 [R], the drafts so far. proposal: all of them. nothing: bool [R, k], where no admitted token has probability.
    """

    def __init__(self, constraint: Constraint, batch: Batch, vocabulary: int) -> None:
        check_constraint(constraint)
        self.batch = batch
        self.parsers = [Parser(constraint.matcher()) for _ in batch.lengths]
        self.committed = batch.lengths.copy()
        self.drawn: list[np.ndarray] = []
        self.proposal: Any = None
        self.nothing = np.zeros((0, 0), bool)
        self._check_vocabulary(vocabulary)

    def _check_vocabulary(self, vocabulary: int) -> None:
        """Raise if a constraint speaks of more ids than the target has; fewer may be a padded target's."""
        for row in self.batch.rows[:1].tolist():
            mask = self._mask(row, [])
            if mask is not None and len(mask) > vocabulary:
                raise SpecnbError(
                    f"the constraint is over {len(mask)} ids, and the target has {vocabulary}; expected one made with "
                    "the target's tokenizer"
                )

    def drafting(self, chooser: Chooser) -> Chooser:
        """Return a chooser for a drafter: draft i is drawn from what may follow drafts 0 … i − 1."""
        return Drafting(**_fields(chooser), parsers=self)

    def judging(self, chooser: Chooser) -> Chooser:
        """Return a chooser for the verdict: p behind each draft is over what may follow it."""
        return Judging(**_fields(chooser), parsers=self)

    def following(self, draft: DraftRun, chooser: Chooser) -> DraftRun:
        """Return a drafter's run, begun with that chooser, that tells the parsers what each round came to."""
        return Following(draft, chooser, self)

    def masks(self, rows: np.ndarray, paths: list[list[list[int]]], vocabulary: int) -> torch.Tensor:
        """Return which ids may follow each row's paths, bool [R, k, vocabulary]; all where a path isn't admitted."""
        masks = np.ones((len(rows), max(map(len, paths), default=0), vocabulary), bool)
        for r, row in enumerate(rows.tolist()):
            for i, path in enumerate(paths[r]):
                if (mask := self._mask(row, path)) is not None:
                    shared = min(len(mask), vocabulary)
                    masks[r, i, :shared], masks[r, i, shared:] = mask[:shared], False
        return torch.from_numpy(masks)

    def _mask(self, row: int, path: list[int]) -> np.ndarray | None:
        try:
            return self.parsers[row].mask(path)
        except SpecnbError as error:
            raise SpecnbError(f"request {row}, position {self.committed[row] + len(path)}: {error}") from error

    def commit(self) -> None:
        """Move the parsers of the running rows to what was committed."""
        for row in self.batch.rows.tolist():
            emitted = self.batch.text(row)[self.committed[row] :].tolist()
            if not self.parsers[row].commit(emitted):
                raise SpecnbError(
                    f"request {row} emitted {emitted} from position {self.committed[row]} on, which its constraint "
                    "doesn't admit; expected a lossless rule, which never emits what p excludes"
                )
            self.committed[row] += len(emitted)


@dataclass
class Drafting(Chooser):
    """Draws drafts that the constraint admits, as far as the drafter's own law has any."""

    parsers: Parsers

    def probabilities(self, logits: torch.Tensor, first: int = 0) -> Any:
        """Return the distributions of logits [R, k, V], the first column masked as what follows the drafts so far."""
        drawn = np.stack(self.parsers.drawn, 1) if self.parsers.drawn else np.zeros((len(self.rows), 0), np.int64)
        masks = self.parsers.masks(self.rows, [[path] for path in drawn.tolist()], logits.shape[2])
        masked, nothing = _masked(logits[:, :1], masks)
        head = torch.where(nothing[..., None], logits[:, :1].float(), masked)  # whatever is drawn then is rejected
        whole = head if logits.shape[1] == 1 else torch.cat([head, logits[:, 1:].float()], 1)
        return super().probabilities(whole)

    def draw(self, probs: Any, position: np.ndarray, index: int) -> Any:
        """Draw draft `index` and note it."""
        tokens = super().draw(probs, position, index)
        del self.parsers.drawn[index:]
        self.parsers.drawn.append(to_numpy(self.tensor(tokens)))
        return tokens


@dataclass
class Judging(Chooser):
    """Verifies drafts by p over what the constraint admits behind them."""

    parsers: Parsers

    def probabilities(self, logits: torch.Tensor, first: int = 0) -> Any:
        """Return the distributions of the target's logits [R, k, V], column i behind the round's first + i drafts."""
        k, V = logits.shape[1:]
        proposal = self.parsers.proposal
        drafts = to_numpy(self.tensor(proposal.tokens)).tolist()
        paths = [
            [draft[:i] for i in range(first, min(first + k, int(length) + 1))]
            for draft, length in zip(drafts, proposal.lengths, strict=True)
        ]
        masked, nothing = _masked(logits, self._full(self.parsers.masks(self.rows, paths, V), k))
        here = nothing.cpu().numpy()
        self.parsers.nothing = np.concatenate([self.parsers.nothing[:, :first], here], 1) if first else here
        return super().probabilities(torch.where(nothing[..., None], logits.float(), masked))

    def verify(self, proposal: Proposal, p: Any, position: np.ndarray) -> Decision:
        """Decide, or raise `SpecnbError` where a request came to a place that admits no token."""
        decision = super().verify(proposal, p, position)
        nothing = self.parsers.nothing[:, : p.shape[1]]
        reached = nothing & (np.arange(nothing.shape[1]) <= decision.accepted[:, None])
        if (stuck := reached.any(1) & (decision.status == 0)).any():
            r = int(stuck.argmax())
            raise SpecnbError(
                f"request {self.rows[r]}, position {position[r] + reached[r].argmax()}: the constraint admits no token "
                "that has probability there; expected one that the tokenizer can write to its end, and processors that "
                "leave it a way"
            )
        return decision

    def _full(self, masks: torch.Tensor, k: int) -> torch.Tensor:
        """Return masks with k columns, where those behind each row's drafts admit everything."""
        R, known, V = masks.shape
        return masks if known == k else torch.cat([masks, masks.new_ones(R, k - known, V)], 1)


@dataclass
class Following:
    """A drafter's run under a constraint."""

    draft: DraftRun
    chooser: Chooser
    parsers: Parsers

    @property
    def calls(self) -> int:
        """Forwards so far."""
        return self.draft.calls

    def propose(self, batch: Batch, limits: np.ndarray) -> Proposal:
        """Draft, beginning at the committed text."""
        self.parsers.drawn = []
        self.parsers.proposal = self.draft.propose(batch, limits)
        return self.parsers.proposal

    def rollback(self, lengths: np.ndarray) -> None:
        """Forget what was rejected, in the draft and in the parsers."""
        self.draft.rollback(lengths)
        self.parsers.commit()

    def keep(self, index: np.ndarray) -> None:
        """Drop the rows that left; their parsers are never asked again."""
        self.draft.keep(index)
        self.chooser.keep(index)


def _masked(logits: torch.Tensor, masks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return logits [R, k, V] with −inf where nothing is admitted, and in which rows that leaves none, bool [R, k]."""
    masked = logits.float().masked_fill(~masks.to(logits.device), -torch.inf)
    return masked, (masked == -torch.inf).all(2)


def _fields(chooser: Chooser) -> dict[str, Any]:
    return {field.name: getattr(chooser, field.name) for field in fields(Chooser)}
