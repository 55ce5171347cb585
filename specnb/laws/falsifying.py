"""`specnb.laws.falsify`: the smallest rows on which a rule breaks its promise."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np

from specnb import rules
from specnb.errors import SpecnbError
from specnb.laws.comparing import TOLERANCE, Comparison, NotExact, in_floats, in_fractions
from specnb.laws.joint import Tree
from specnb.laws.rows import as_count
from specnb.laws.scenarios import Scenario, as_scenario
from specnb.rules import Rule

GRID = {"gammas": (1, 2, 3), "vocabularies": (2, 3, 4), "denominators": (1, 2, 3, 4, 5, 6)}
"""Where `falsify` looks unless told otherwise: 41,001 pairs of rows, a few seconds for a lossless rule."""

REUSED_GRID = {"gammas": (1,), "vocabularies": (2,), "denominators": (1, 2, 3)}
"""The same where steps share uniforms, whose cells are many: 29 pairs."""

ENTRIES = 10**6
"""How many entries of corrections are computed at once: 8 MB in float64."""


@dataclass(frozen=True, repr=False)
class Counterexample:
    """Rows, the same after every prefix, on which what comes out isn't what was promised; it shows itself as code.

    target: the promised row, which is p but in a scenario that promises another. distance: the total variation of
    the joint law of steps·(γ+1) tokens; first_token: of the first alone. tokens: those whose probability is most
    wrong, `emitted` in place of `promised`. Numbers are Fractions unless the law works in float64 alone.
    """

    rule: str | Rule | Scenario = field(compare=False)
    gamma: int
    steps: int
    p: list
    q: list
    target: list
    distance: Any
    first_token: Any
    tokens: tuple[int, ...]
    emitted: Any
    promised: Any

    def __repr__(self) -> str:
        """Return three lines of code, whose last one computes the total variation."""
        name = _in_code(self.rule)
        modules = "laws, " + name.partition(".")[0] if "." in name else "laws"
        target = "p" if self.target == self.p else self.target
        tokens = ", ".join(map(str, self.tokens))
        return (
            f"from fractions import Fraction; from specnb import {modules}\n"
            f"p, q = {self.p}, {self.q}\n"
            f"laws.total_variation(laws.joint_law({name}, p=p, q=q, gamma={self.gamma}, steps={self.steps}), "
            f"laws.target_law({target}, {len(self.tokens)}))"
            f"  # {self.distance}; P({tokens}) is {self.emitted}, promised {self.promised}"
        )

    def seen_by(self) -> dict[str, Any]:
        """Return the total variation that each of three tests could see on these rows; it is blind to a 0."""
        one, two = (_compared(self.rule, self.gamma, steps, self.p, self.q) for steps in (1, 2))
        return {"first token": one.first_token(0), "one step": one.distance(0), "two steps": two.distance(0)}


def falsify(
    rule: str | Rule | Scenario, *, gammas: Iterable[int] | None = None, vocabularies: Iterable[int] | None = None,
    denominators: Iterable[int] | None = None, steps: int | None = None,
) -> Counterexample | None:  # fmt: skip
    """Return the first rows on which a rule's joint law isn't what it promises, or None if the grid holds none.

    Rows have entries k/denominator and are the same after every prefix. They come in the order of γ, V, denominator,
    p, q, the rows by their first entries; so the first are the smallest. The grid is screened in float64 for total
    variations above `TOLERANCE` and confirmed in Fractions, where the law has any. None of an argument is that of
    `GRID` (`REUSED_GRID` where steps share uniforms), and the scenario's own steps.

    None is no proof: a rule may be wrong on other rows, above all on rows that depend on the prefix, which
    `certify` tries. Raises `SpecnbError` for a law that returns what are no laws, and for a grid without a draft
    to judge.

    >>> falsify("token", vocabularies=[2])
    >>> falsify(rules.lenient(0.5)).distance
    Fraction(1, 2)
    """
    use = as_scenario(rule)
    grid = REUSED_GRID if use.uniforms == "reused" else GRID
    gammas = _counts("gammas", gammas, grid, 0)
    vocabularies = _counts("vocabularies", vocabularies, grid, 1)
    if gammas[-1] < 1 or vocabularies[-1] < 2:
        raise SpecnbError(f"gammas {gammas} and vocabularies {vocabularies} have no draft to judge; expected 1, 2 too")
    denominators = _counts("denominators", denominators, grid, 1)
    steps = as_count("steps", use.steps if steps is None else steps, 1)
    for gamma, V, denominator in itertools.product(gammas, vocabularies, denominators):
        for p, q in _suspects(use, gamma, V, denominator, steps):
            if found := _confirmed(rule, gamma, steps, p, q):
                return found
    return None


def _counts(name: str, values: Iterable[int] | None, grid: dict[str, tuple[int, ...]], low: int) -> list[int]:
    """Return the values of one side of the grid in their order."""
    if values is None:
        return list(grid[name])
    if not isinstance(values, Iterable) or not (counts := sorted({as_count(name, value, low) for value in values})):
        raise SpecnbError(f"{name} is {values!r}; expected integers >= {low}")
    return counts


def _suspects(use: Scenario, gamma: int, V: int, denominator: int, steps: int) -> Iterator[tuple[list, list]]:
    """Yield, in order, the exact rows of a denominator on which float64 sees the laws differ."""
    rows = _rows(V, denominator)
    tree = _every_prefix(rows / denominator, steps * (gamma + 1))
    pairs = np.indices((len(rows), len(rows))).reshape(2, -1)
    at_once = 1 if use.uniforms == "reused" else max(1, ENTRIES // ((gamma + 1) * V ** (steps * (gamma + 1))))
    for start in range(0, pairs.shape[1], at_once):
        batch = pairs[:, start : start + at_once]
        target, drafted = ([level[side] for level in tree] for side in batch)
        compared = in_floats(use, target, drafted, gamma, steps)
        for i in np.flatnonzero(compared.distances > TOLERANCE):
            p, q = ([Fraction(int(k), denominator) for k in rows[side[i]]] for side in batch)
            yield p, q


def _rows(V: int, denominator: int) -> np.ndarray:
    """Return all rows of V counts that sum to the denominator, ordered by their first entries.

    >>> _rows(2, 2).tolist()
    [[0, 2], [1, 1], [2, 0]]
    """
    bars = np.array(list(itertools.combinations(range(denominator + V - 1), V - 1)), int)
    return np.diff(bars, axis=1, prepend=-1, append=denominator + V - 1) - 1


def _every_prefix(rows: np.ndarray, tokens: int) -> Tree:
    """Return the rows [N, V] of N examples, each the same after all of its prefixes."""
    N, V = rows.shape
    return [np.broadcast_to(rows[:, None], (N, V**k, V)) for k in range(tokens)]


def _confirmed(rule: str | Rule | Scenario, gamma: int, steps: int, p: list, q: list) -> Counterexample | None:
    """Return rows as a counterexample if they are one in Fractions, or in floats where a law has no other."""
    try:
        compared = _compared(rule, gamma, steps, p, q)
    except NotExact:
        p, q = [float(x) for x in p], [float(x) for x in q]
        compared = _compared(rule, gamma, steps, p, q)
    if not compared.differs(0):
        return None
    target = compared.promised[0].reshape(len(p), -1).sum(1).tolist()
    return Counterexample(
        rule, gamma, steps, p, q, target, compared.distance(0), compared.first_token(0), *compared.most_apart(0)
    )


def _compared(rule: str | Rule | Scenario, gamma: int, steps: int, p: list, q: list) -> Comparison:
    """Return the comparison on rows of Fractions or of floats."""
    rows = np.array([p, q])
    compare = in_fractions if rows.dtype == object else in_floats
    target, drafted = (_every_prefix(row[None], steps * (gamma + 1)) for row in rows)
    return compare(as_scenario(rule), target, drafted, gamma, steps)


def _in_code(rule: str | Rule | Scenario) -> str:
    """Return an expression for a rule of this package; a reader's own is called `rule`."""
    from specnb import mistakes  # which are made of scenarios, and so of this package

    for mistake in mistakes.CATALOGUE:
        if rule is mistake.use:
            return f"mistakes.get({mistake.name!r}).use"
    if not isinstance(rule, Rule):
        return repr(rule) if isinstance(rule, str) else "rule"
    law = getattr(rule.law, "func", rule.law)
    if rule.name not in rules.LOSSY or getattr(law, "__module__", "") != rules.__name__:
        return "rule"
    return f"rules.{rule.name}({', '.join(f'{name}={value!r}' for name, value in rule.parameters.items())})"
