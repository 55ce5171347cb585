"""The exact law of what somebody's sampler emits, from its decisions at midpoints of cells of its uniforms."""

from __future__ import annotations

import functools
import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from specnb import rules
from specnb.arithmetic import EXACT
from specnb.errors import SpecnbError
from specnb.laws.auditing.calls import Fault, Outcome, Sampler, ask_all, is_tokens, noted, quiet
from specnb.laws.auditing.cells import RESOLUTION, Point, volumes
from specnb.laws.rows import Rows, as_count, trees_of

Masses = dict[Any, Fraction]
"""The probability of each outcome: tokens, a `Raised` or `Invalid` text, or None where it is undecided."""


@dataclass(frozen=True)
class Measured:
    """What a sampler was seen to do on rows p and q: the law of its tokens, and what became of the rest.

    law: [V, …, V]. lost: the masses that led to no tokens. accepted: expected accepted drafts of the first step.
    kept, rejected: whether that step ever kept a draft, and ever rejected one. faults: by their text.
    """

    law: np.ndarray
    lost: Masses
    accepted: Fraction
    kept: bool
    rejected: bool
    faults: dict[str, Fault]


def sampler_law(sampler: Sampler, *, p: Rows, q: Rows, gamma: int, steps: int = 1) -> np.ndarray:
    """Return the exact law of the first steps·(γ+1) tokens that a sampler emits, with drafts drawn from q.

    sampler: a function (draft [G], q [G, V], p [G+1, V], uniforms [G+1]) → tokens. p, q: rows of Fractions, or
    functions from a prefix to one. What a sampler leaves of its tokens is drawn from p, so a lossless one has the
    law `target_law(p, steps·(γ+1))`. Where it raises, returns no tokens or can't be decided, mass is missing.

    >>> half = [Fraction(1, 2), Fraction(1, 2)]
    >>> sampler_law(lambda draft, q, p, uniforms: [int(uniforms[0] > 0.25)], p=half, q=half, gamma=0).tolist()
    [Fraction(1, 4), Fraction(3, 4)]
    """
    with quiet():
        return measure(sampler, p=p, q=q, gamma=gamma, steps=steps).law


def measure(
    sampler: Sampler, *, p: Rows, q: Rows, gamma: int, steps: int = 1, resolution: Fraction = RESOLUTION
) -> Measured:
    """Return what a sampler does on these rows; arguments as `sampler_law`."""
    gamma, steps = as_count("gamma", gamma, 0), as_count("steps", steps, 1)
    depth = steps * (gamma + 1)
    target, drafted, xp = trees_of(p, q, depth)
    if xp is not EXACT:
        raise SpecnbError("p and q are floats; expected Fractions, for whose law a sampler is measured exactly")
    seen = _Steps(sampler, gamma, target, drafted, resolution, {})
    step = functools.cache(seen.law)
    law, lost = _composed(step, target, steps)
    return measured(law, lost, step(()), gamma, seen.faults)


def measured(law: np.ndarray, lost: Masses, first: Masses, gamma: int, faults: dict[str, Fault]) -> Measured:
    """Return what was measured; `first` are the outcomes of the first step."""
    lengths = [(len(outcome) - 1, mass) for outcome, mass in first.items() if is_tokens(outcome)]
    accepted = sum((n * mass for n, mass in lengths), Fraction())
    return Measured(law, lost, accepted, any(n > 0 for n, _ in lengths), any(n < gamma for n, _ in lengths), faults)


def natural_cuts(draft: np.ndarray, q: np.ndarray, p: np.ndarray) -> list[set[Fraction]]:
    """Return where samplers may change their mind, [G+1] sets: p(x), its ratios to q(x), and ends of laws to draw."""
    p_x, q_x = EXACT.at(p[: len(draft)], draft), EXACT.at(q, draft)
    tests = p_x, EXACT.divide(p_x, q_x), EXACT.divide(q_x, p_x)
    ends = {*rules.token(draft, q, p, EXACT)[1].cumsum(-1).flat, *p.cumsum(-1).flat}
    return [{cut for cut in axis if 0 < cut < 1} for axis in (*map(set, zip(*tests, strict=True)), ends)]


def row_after(tree: list[np.ndarray], prefix: tuple[int, ...]) -> np.ndarray:
    """Return the row after a prefix from rows in the prefixes' order."""
    index = 0
    for token in prefix:
        index = index * tree[0].size + token
    return tree[len(prefix)][index]


def path_after(
    target: list[np.ndarray], drafted: list[np.ndarray], prefix: tuple[int, ...], draft: tuple[int, ...]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return a path of drafts after a prefix as arrays: the draft [G], and its rows q [G, V] and p [G+1, V]."""
    q = [row_after(drafted, prefix + draft[:i]) for i in range(len(draft))]
    p = [row_after(target, prefix + draft[:i]) for i in range(len(draft) + 1)]
    return np.array(draft, np.int64), np.array(q, p[0].dtype).reshape(-1, len(p[0])), np.array(p)


@dataclass(frozen=True)
class _Steps:
    """Single steps of a sampler, after any prefix, with drafts drawn from q."""

    sampler: Sampler
    gamma: int
    target: list[np.ndarray]
    drafted: list[np.ndarray]
    resolution: Fraction
    faults: dict[str, Fault]

    def law(self, prefix: tuple[int, ...]) -> Masses:
        """Return the law of the outcome after a prefix.

        After a path that can't be decided, the others are left undecided too: a verdict has no use for them.
        """
        law: Masses = defaultdict(Fraction)
        for chance, draft, q, p in self.paths(prefix):
            if None in law:
                law[None] += chance
                continue
            decide = functools.partial(self.decide, draft, q.astype(np.float64), p.astype(np.float64))
            for outcome, volume in volumes(decide, natural_cuts(draft, q, p), self.resolution).items():
                law[outcome] += chance * volume
        return law

    def decide(self, draft: np.ndarray, q: np.ndarray, p: np.ndarray, points: list[Point]) -> list[Outcome]:
        """Return what the sampler says at each point of the uniforms."""
        given = draft, q, p
        outcomes = ask_all(self.sampler, given, points)
        return [noted(outcome, given, point, self.faults) for outcome, point in zip(outcomes, points, strict=True)]

    def paths(self, prefix: tuple[int, ...]) -> Iterator[tuple[Fraction, np.ndarray, np.ndarray, np.ndarray]]:
        """Yield every path of drafts that q can draw after a prefix: its probability, the draft, its rows q and p."""
        for path in itertools.product(range(self.target[0].size), repeat=self.gamma):
            draft, q, p = path_after(self.target, self.drafted, prefix, path)
            chance = math.prod(EXACT.at(q, draft), start=Fraction(1))
            if chance:
                yield chance, draft, q, p


def _composed(step: Callable[[tuple[int, ...]], Masses], target: list, steps: int) -> tuple[np.ndarray, Masses]:
    """Return the law of what several steps emit, continued by the target's tokens, and the masses that were lost."""
    emitted: Masses = {(): Fraction(1)}
    lost: Masses = defaultdict(Fraction)
    for _ in range(steps):
        after: Masses = defaultdict(Fraction)
        for prefix, mass in emitted.items():
            for outcome, share in step(prefix).items():
                masses, key = (after, prefix + outcome) if is_tokens(outcome) else (lost, outcome)
                masses[key] += mass * share
        emitted = after
    law, V = np.array([Fraction()]), target[0].size
    for k, rows in enumerate(target, 1):
        law = (law[:, None] * rows).reshape(-1)
        for tokens, mass in emitted.items():
            if len(tokens) == k:
                law[np.ravel_multi_index(tokens, (V,) * k)] += mass
    return law.reshape((V,) * len(target)), lost
