"""The law of a sampler that draws for itself: counted over many runs, and compared by a G-test of stated power."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from specnb.errors import SpecnbError
from specnb.laws.auditing.calls import Fault, Outcome, Sampler, ask, copies, is_tokens, noted
from specnb.laws.auditing.midpoints import Measured, measured, path_after, row_after
from specnb.laws.auditing.trials import Trial
from specnb.laws.rows import tree_of

LEVEL = 1e-4
"""The chance that an audit of G-tests calls a right sampler wrong, all its trials together."""

POWER = 0.99
"""The chance that a law is called wrong that is as far off as `GTest.detectable`."""

FEWEST = 5
"""Cells expected fewer times are pooled into one: below, G isn't χ² distributed."""


class GTest(NamedTuple):
    """A G-test: its p-value, the level it was made at, how many cells it compared, and what it would have seen.

    detectable: from which total variation of the cells on a wrong law is found with probability `POWER`; None where
    the law allows a single cell, and one impossible outcome tells.
    """

    p_value: float
    level: float
    cells: int
    detectable: float | None

    @property
    def fails(self) -> bool:
        """Tell whether the law was found wrong."""
        return self.p_value < self.level


def g_test(shares: np.ndarray, law: np.ndarray, samples: int, level: float) -> GTest:
    """Return the test of shares of that many samples under a law of the same shape.

    What the law makes impossible has p-value 0. By Pinsker's inequality, a law at total variation t has G's
    noncentrality 2·samples·KL >= 4·samples·t².
    """
    expected, seen = (samples * x.astype(np.float64).reshape(-1) for x in (law, shares))
    impossible = bool(seen[expected == 0].any())
    rare = expected < FEWEST
    expected, seen = (np.append(x[~rare], x[rare].sum()) for x in (expected, seen))
    expected, seen = expected[expected > 0], seen[expected > 0]
    freedom = len(expected) - 1
    if not freedom:
        return GTest(float(not impossible), level, 1, None)
    stats, _ = _scipy()
    G = 2 * (seen * np.log(np.maximum(seen, 1) / expected)).sum()
    p_value = 0.0 if impossible else float(stats.chi2.sf(G, freedom))
    return GTest(p_value, level, freedom + 1, float(np.sqrt(_noncentrality(freedom, level) / (4 * samples))))


def _noncentrality(freedom: int, level: float) -> float:
    """Return the noncentrality that a test of that level finds with probability `POWER`."""
    stats, optimize = _scipy()
    threshold = stats.chi2.isf(level, freedom)
    return optimize.brentq(lambda x: stats.ncx2.sf(threshold, freedom, x) - POWER, 1e-3, 1e4)


def _scipy() -> tuple[Any, Any]:
    try:
        from scipy import optimize, stats
    except ImportError as error:
        raise SpecnbError(f"a G-test needs SciPy, which can't be imported ({error}): pip install scipy") from None
    return stats, optimize


def count(sampler: Sampler, trial: Trial, samples: int, seed: int) -> Measured:
    """Return what came of that many runs of a trial; every mass is a count over `samples`."""
    depth = trial.steps * (trial.gamma + 1)
    target, drafted = ([rows.astype(np.float64) for rows in tree_of(name, rows, depth)]
                       for name, rows in (("p", trial.p), ("q", trial.q)))  # fmt: skip
    runs = _Runs(sampler, trial, target, drafted, random.Random(seed), {})
    outcomes = [runs.run() for _ in range(samples)]
    first, emitted = (
        {outcome: Fraction(times, samples) for outcome, times in Counter(column).items()}
        for column in zip(*outcomes, strict=True)
    )
    law = np.full((target[0].size,) * depth, Fraction())
    for tokens in filter(is_tokens, emitted):
        law[tokens] = emitted[tokens]
    lost = {outcome: mass for outcome, mass in emitted.items() if not is_tokens(outcome)}
    return measured(law, lost, first, trial.gamma, runs.faults)


@dataclass(frozen=True)
class _Runs:
    """Runs of a sampler on a trial's rows in floats, with drafts drawn from q."""

    sampler: Sampler
    trial: Trial
    target: list[np.ndarray]
    drafted: list[np.ndarray]
    rng: random.Random
    faults: dict[str, Fault]

    def run(self) -> tuple[Outcome, Outcome]:
        """Return what the first step emitted, and what all steps did, continued by the target's tokens."""
        first = outcome = self.step(())
        for _ in range(1, self.trial.steps):
            if is_tokens(outcome):
                then = self.step(outcome)
                outcome = outcome + then if is_tokens(then) else then
        return first, self.drawn(outcome, self.target, len(self.target)) if is_tokens(outcome) else outcome

    def step(self, tokens: tuple[int, ...]) -> Outcome:
        """Return what the sampler emits after these tokens."""
        draft = self.drawn(tokens, self.drafted, len(tokens) + self.trial.gamma)[len(tokens) :]
        given = path_after(self.target, self.drafted, tokens, draft)
        return noted(ask(self.sampler, *copies(given)), given, None, self.faults)

    def drawn(self, tokens: tuple[int, ...], tree: list[np.ndarray], length: int) -> tuple[int, ...]:
        """Return tokens continued up to a length by draws from the rows of a tree."""
        while len(tokens) < length:
            row = row_after(tree, tokens).tolist()
            tokens = (*tokens, *self.rng.choices(range(len(row)), row))
        return tokens
