"""What another rule, or a shorter draft, would have accepted on the rows of a run: `specnb.rescore`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
from scipy import stats

from specnb import rules
from specnb.decoding.arguments import check_count, check_number
from specnb.decoding.generation import Generation
from specnb.decoding.trace import Traced, header, read
from specnb.errors import SpecnbError
from specnb.laws import law
from specnb.rules import Decided, Rule

AT_ONCE = 64
"""Rounds whose laws are computed together."""


@dataclass(frozen=True, eq=False)
class Rescored(Decided):
    """The drafts that a rule is expected to keep on the rounds of a trace.

    estimand: what the numbers are, in words. accepted: expected drafts kept per round; low, high: its confidence
    interval at `level`, over requests (NaN if there is only one). observed: what the traced run itself kept per
    round, of its whole drafts. acceptance: float64 [gamma], the chance to keep draft i where the drafts before it
    are kept. requests, rounds: how many there are. decided_by, gamma: the rule and the longest draft asked about.
    """

    estimand: str
    accepted: float
    low: float
    high: float
    level: float
    observed: float
    acceptance: np.ndarray
    requests: int
    rounds: int
    decided_by: Rule
    gamma: int

    @property
    def tokens_per_round(self) -> float:
        """Expected tokens that a round emits: the drafts that are kept and one more."""
        return self.accepted + 1


def rescore(trace: Any, *, rule: str | Rule = "token", gamma: int | None = None, level: float = 0.95) -> Rescored:
    """Return what a rule would have accepted on the rounds of a trace, exactly and without the models.

    Given each round's draft and its rows p and q, the rule's law of how many drafts it keeps is computed and
    averaged. It says nothing about the rounds that a run with that rule would have had: they would have begun at
    other positions. Rounds are averaged within and between requests; only requests are taken as independent.

    Parameters
    ----------
    trace : a folder that `specnb.generate(..., trace=folder)` wrote, also of an interrupted run; or that run.
    rule : name, or `specnb.rules.Rule`.
    gamma : only the first gamma drafts of each round count, 1 … the trace's γ; None counts all.
    level : of the confidence interval, between 0 and 1.

    Returns
    -------
    Rescored : the estimate with the interval, and in `estimand` what it estimates.

    Raises
    ------
    SpecnbError : no trace there, no round in it, a gamma that is longer than its drafts, another kind of argument.

    Source: the laws are those of `specnb.law`; the interval is Student's for a ratio of sums over clusters
    (Cochran, Sampling Techniques, 1977, section 6.3).
    """
    level = check_number("level", level, 0, 1)
    path = trace.traced if isinstance(trace, Generation) else trace
    if path is None:
        raise SpecnbError("this run has no trace; expected generate(..., trace=folder)")
    rule, about = rules.get(rule), header(path)
    most = about["gamma"] if gamma is None else check_count("gamma", gamma, least=1)
    if most > about["gamma"]:
        raise SpecnbError(f"gamma is {most}, but the trace's rounds drafted {about['gamma']} tokens; expected no more")
    kept, observed, survived = defaultdict(list), [], np.zeros(most + 1)
    reached = np.zeros(most)
    for batch in _in_batches(read(path), AT_ONCE):
        observed += [traced.accepted for traced in batch]
        for traced, chances in zip(batch, _chances(batch, rule, most), strict=True):
            at_least = chances[::-1].cumsum()[::-1]  # P(n >= 0), P(n >= 1), …
            kept[traced.row].append(float(at_least[1:].sum()))
            survived[: len(at_least)] += at_least
            reached[: len(at_least) - 1] += at_least[:-1]
    if not kept:
        raise SpecnbError(f"the trace at {str(path)!r} has no round; expected one of a run that emitted something")
    accepted, half = _ratio_over_requests(list(kept.values()), level)
    low, high = np.clip([accepted - half, accepted + half], 0, most).tolist()  # Student's knows no limits
    acceptance = np.divide(survived[1:], reached, out=np.full(most, np.nan), where=reached > 0)
    return Rescored(
        _estimand(rule, most, about), accepted, low, high, level, float(np.mean(observed)), acceptance, len(kept),
        len(observed), rule, most,
    )  # fmt: skip


def _estimand(rule: Rule, gamma: int, about: dict[str, Any]) -> str:
    return (
        f"expected drafts that rule {rule.label} keeps per round, of at most the first {gamma}, given the drafts and "
        f"the rows of the rounds that were run (rule {about['rule']}, γ = {about['gamma']}); a run by that rule would "
        "begin its rounds elsewhere"
    )


def _in_batches(rounds: Iterator[Traced], size: int) -> Iterable[list[Traced]]:
    while batch := list(islice(rounds, size)):
        yield batch


def _chances(batch: list[Traced], rule: Rule, gamma: int) -> list[np.ndarray]:
    """Return for each round P(n drafts are kept), n = 0 … drafts."""
    chances: list[Any] = [np.ones(1)] * len(batch)
    groups = defaultdict(list)
    for i, traced in enumerate(batch):
        rows = traced.rows
        groups[min(len(rows.draft), gamma), rows.q is None].append(i)
    for (G, onehot), members in groups.items():
        if G:
            rows = [batch[i].rows for i in members]
            q = None if onehot else np.stack([one.q[:G] for one in rows if one.q is not None])
            draft, p = np.stack([one.draft[:G] for one in rows]), np.stack([one.p[: G + 1] for one in rows])
            for i, lengths in zip(members, law(draft, q, p, rule=rule)[0], strict=True):
                chances[i] = lengths
    return chances


def _ratio_over_requests(kept: list[list[float]], level: float) -> tuple[float, float]:
    """Return the mean over all rounds and half its interval, with requests as the independent units."""
    sums, counts = np.array([sum(values) for values in kept]), np.array([len(values) for values in kept])
    ratio, n = float(sums.sum() / counts.sum()), len(kept)
    if n == 1:
        return ratio, float("nan")
    error = np.sqrt(n / (n - 1) * ((sums - ratio * counts) ** 2).sum()) / counts.sum()
    return ratio, float(stats.t.ppf((1 + level) / 2, n - 1) * error)
