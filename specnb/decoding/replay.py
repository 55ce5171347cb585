"""One round of a run again: its rows, its random words and its verdict."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from specnb.arrays import to_numpy
from specnb.backends.numpy import ACCEPTING, FINAL, OWN
from specnb.backends.numpy_words import philox
from specnb.decoding.rounds import Round
from specnb.errors import SpecnbError
from specnb.rules import Rule
from specnb.streams import draft_word
from specnb.verdict import Verdict

if TYPE_CHECKING:
    from specnb.decoding.generation import Generation


@dataclass(frozen=True, eq=False)
class Rows:
    """What one request's round was decided on: draft int64 [G], q [G, V'] or None (one-hot), p [G+1, V]."""

    draft: np.ndarray
    q: np.ndarray | None
    p: np.ndarray


@dataclass(frozen=True, eq=False)
class Replay:
    """A round of one request, as it was.

    round: what happened. draft: int64 [G]. q: [G, V'], None if the draft is one-hot. p: [G+1, V]. rule: by which it
    was decided. verdict: what `specnb.verify` says about these, with the request's seed and stream.
    words: the random words, uint64: "drafting" [G], what drafts were drawn by, if they were; "accepting" [G] and
    "final" [1]; by the rule `coupled` "own" [G+1] instead of the last two.
    """

    round: Round
    draft: np.ndarray
    q: np.ndarray | None
    p: np.ndarray
    rule: Rule
    words: dict[str, np.ndarray]
    verdict: Verdict

    def law(self) -> tuple[Any, ...]:
        """Return the exact law of that verdict over all words: `specnb.law` of these rows."""
        from specnb.laws import law

        return law(self.draft, self.q, self.p, rule=self.rule)


def replay(run: Generation, which: int | Round) -> Replay:
    """Return a round of a run again: see `Generation.replay`."""
    round_ = which if isinstance(which, Round) else _round(run, which)
    if run.plan is None:
        raise SpecnbError("this run was pickled, and left its models and seed behind; expected the run itself")
    if run.traced is not None:
        from specnb.decoding.trace import rows_of

        rows = rows_of(run.traced, round_.step, round_.row)
    else:
        rows = _again(run, round_)
    key, stream = _key(run.plan.seed, round_.row)
    words = _words(run.decided_by, key, stream, round_.position, len(rows.draft))
    verdict = _verdict(run.decided_by, key, stream, round_.position, rows)
    return Replay(round_, rows.draft, rows.q, rows.p, run.decided_by, words, verdict)


def _round(run: Generation, index: int) -> Round:
    if isinstance(index, bool) or not isinstance(index, (int, np.integer)) or not 0 <= index < len(run.rounds):
        raise SpecnbError(f"round is {index!r}; expected 0 … {len(run.rounds) - 1}, or one of the run's rounds")
    return run.rounds[index]


def _again(run: Generation, wanted: Round) -> Rows:
    """Make the run again up to a round, and return that round's rows of one request."""
    found: list[Rows] = []
    plan: Any = run.plan
    if not plan.repeatable:
        raise SpecnbError(
            "the run can't be made again, because a logits processor or a stopping criterion may keep a state of its "
            "own; expected a run with trace=path"
        )

    def watch(logged: Any, proposal: Any, p: Any) -> None:
        rows, decision = logged.decision.rows.tolist(), logged.decision
        if wanted.row in rows:
            r = rows.index(wanted.row)
            n = int(decision.limits[r])
            q = None if proposal.q is None else to_numpy(proposal.q[r, :n]).copy()
            found[:] = [Rows(decision.draft[r, :n].copy(), q, to_numpy(p[r, : n + 1]).copy())]

    with torch.inference_mode():
        again = plan.silent().start(exact=True)
        for _ in range(wanted.step):
            again.round()
        again.watchers.append(watch)
        again.round()
    if not found or found[0].draft.tolist() != list(wanted.draft):
        raise SpecnbError(
            "the run came out differently when it was made again; expected models that nobody changed since: use "
            "trace=path to keep what a run was decided on"
        )
    return found[0]


def _key(seed: Any, row: int) -> tuple[int, int]:
    """Return the key and the stream of a request."""
    return (int(seed), row) if np.ndim(seed) == 0 else (int(np.asarray(seed)[row]), 0)


def _words(rule: Rule, key: int, stream: int, position: int, G: int) -> dict[str, np.ndarray]:
    drafting = [philox(key, *draft_word(rule, position, i), stream) for i in range(G)]
    words = {"drafting": np.array(drafting, np.uint64).reshape(G)}
    if rule.sampler == "verify_coupled":
        return words | {"own": philox(key, position + np.arange(G + 1), 0, OWN, stream)}
    accepting = philox(key, position, np.arange(G), ACCEPTING, stream)
    return words | {"accepting": accepting, "final": philox(key, position, 0, FINAL, stream).reshape(1)}


def _verdict(rule: Rule, key: int, stream: int, position: int, rows: Rows) -> Verdict:
    """Return the verdict of one request; its stream is its place in a batch, so it is put there."""
    from specnb.verification import verify

    B = stream + 1
    draft, q, p = (x if x is None else np.broadcast_to(x, (B, *x.shape)) for x in (rows.draft, rows.q, rows.p))
    seed: Any = key if stream else np.array([key])
    verdict = verify(draft, q, p, rule=rule, seed=seed, position=position, backend="numpy")
    own = slice(stream, B)
    inputs: Any = tuple(x if x is None else x[own] for x in verdict.inputs)
    return replace(
        verdict, tokens=verdict.tokens[own], num_accepted=verdict.num_accepted[own], status=verdict.status[own],
        inputs=inputs,
    )  # fmt: skip
