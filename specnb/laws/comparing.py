"""What a rule emits against what it promises, for many examples at once."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Rational
from typing import Any

import numpy as np

from specnb.arithmetic import EXACT, FLOAT64, Arithmetic
from specnb.errors import SpecnbError
from specnb.laws.joint import Tree, joint_laws, promised, target_laws
from specnb.laws.scenarios import Scenario

TOLERANCE = 1e-12
"""The total variation that float64 may show of a lossless rule: up to 10^4 entries, of mass 1 in all, each a sum of
products of some ten factors that are rounded by 2^-53, are off by 1e-14 together."""


class NotExact(SpecnbError):
    """A law that works in float64 but not in Fractions: it takes logarithms, mixes in floats, or divides by 0."""


@dataclass(frozen=True)
class Comparison:
    """The joint laws of N examples, [N, V, …, V]: those emitted, those promised, and their total variations [N]."""

    emitted: np.ndarray
    promised: np.ndarray
    distances: np.ndarray

    def differs(self, example: int) -> bool:
        """Tell whether two laws differ: at all if they are Fractions, else by more than `TOLERANCE`."""
        return bool(self.distance(example) > (0 if self.distances.dtype == object else TOLERANCE))

    def distance(self, example: int) -> Any:
        """Return the total variation of the joint law: a Fraction, or a float."""
        return self.distances.tolist()[example]

    def first_token(self, example: int) -> Any:
        """Return the total variation of the first token's law alone."""
        difference = self.emitted[example] - self.promised[example]
        return abs(difference.reshape(1, len(difference), -1).sum(2)).sum(1).tolist()[0] / 2

    def most_apart(self, example: int) -> tuple[tuple[int, ...], Any, Any]:
        """Return the tokens whose probability differs most, as emitted and as promised."""
        emitted, promised = (law[example].reshape(-1) for law in (self.emitted, self.promised))
        at = int(abs(emitted - promised).argmax())
        tokens = np.unravel_index(at, self.emitted.shape[1:])
        return tuple(map(int, tokens)), emitted.tolist()[at], promised.tolist()[at]


def in_floats(use: Scenario, target: Tree, drafted: Tree, gamma: int, steps: int) -> Comparison:
    """Return the comparison of examples in float64."""
    return _compared(use, target, drafted, gamma, steps, FLOAT64)


def in_fractions(use: Scenario, target: Tree, drafted: Tree, gamma: int, steps: int) -> Comparison:
    """Return the exact comparison of examples; raise `NotExact` where a law works in float64 alone."""
    try:
        found = _compared(use, target, drafted, gamma, steps, EXACT)
    except (SpecnbError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise NotExact(f"the law of {use.label} works in float64 alone: {error}") from error
    if not all(isinstance(value, Rational) for laws in (found.emitted, found.promised) for value in laws.flat):
        raise NotExact(f"the law of {use.label} mixes floats into Fractions; expected them to go through xp.number")
    return found


def _compared(use: Scenario, target: Tree, drafted: Tree, gamma: int, steps: int, xp: Arithmetic) -> Comparison:
    N, _, V = target[0].shape
    shape = (N,) + (V,) * (steps * (gamma + 1))
    emitted = joint_laws(use, target, drafted, gamma, steps, xp)
    wanted = target_laws([promised(use, rows, xp) for rows in target])
    return Comparison(emitted.reshape(shape), wanted.reshape(shape), abs(emitted - wanted).sum(1) / 2)
