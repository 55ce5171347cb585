"""Boundary probes: single calls at the ends of uniforms and rows, where a law over the reals shows nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np

from specnb.laws.auditing.calls import Outcome, Raised, Sampler, ask

LAST24, LAST53 = 1 - 2.0**-24, 1 - 2.0**-53
"""The largest uniforms that float32 and float64 generators return."""

ENDS = (0.0, 2.0**-53, LAST24, LAST53)
QUARTERS = (1 / 8, 3 / 8, 5 / 8, 7 / 8)
REPEATS = 32
"""Calls per probe of a sampler that draws for itself."""


class Probe(NamedTuple):
    """Calls with one draft and its rows, and what must come of them.

    uniforms: one call for each. always: what must come of them must come whatever the uniforms are. ratio: it is
    about samplers that keep a draft with probability min(1, p/q).
    """

    name: str
    expected: str
    draft: list[int]
    q: list[list[float]]
    p: list[list[float]]
    uniforms: list[tuple[float, ...]]
    holds: Callable[[list[Outcome]], bool]
    always: bool = False
    ratio: bool = False


class Probed(NamedTuple):
    """What came of a probe; passed is None if it wasn't tried, since the uniforms can't be chosen."""

    name: str
    expected: str
    got: str
    passed: bool | None


def among(*allowed: tuple[int, ...]) -> Callable[[list[Outcome]], bool]:
    """Return the test that only these tokens came."""
    return lambda outcomes: set(outcomes) <= set(allowed)


def shared(shares: dict[tuple[int, ...], int]) -> Callable[[list[Outcome]], bool]:
    """Return the test that each of these came that often, in any order."""
    return lambda outcomes: Counter(outcomes) == shares


def _never(token: int) -> Callable[[list[Outcome]], bool]:
    """Return the test that a token never came; refusing to answer is fine."""
    return lambda outcomes: all(
        isinstance(outcome, Raised) or (isinstance(outcome, tuple) and token not in outcome) for outcome in outcomes
    )


_SOME = [1 / 4, 1 / 4, 1 / 2]
_TOKENS = among((0,), (1,), (2,), (1, 0), (1, 1), (1, 2))
_TINY = 2.0**-20
_TINY_RESIDUAL = {
    "draft": [2],
    "q": [[1 / 4, 1 / 4, 1 / 2, 0]],
    "p": [[1 / 4 + _TINY / 4, 1 / 4 + _TINY * 3 / 4, 1 / 2 - _TINY, 0], [1 / 4] * 4],
}

PROBES = (
    Probe("u = 0, p(x) = 0", "rejects: [1] or [2]", [0], [[1 / 2, 1 / 2, 0]], [[0, 1 / 2, 1 / 2], _SOME],
          [(0.0, 1 / 2)], among((1,), (2,))),
    Probe("q(x) = p(x) = 0", "rejects: [0] or [1]", [2], [[1 / 2, 1 / 2, 0]], [[1 / 4, 3 / 4, 0], _SOME],
          [(u, 1 / 2) for u in ENDS], among((0,), (1,)), always=True),
    Probe("q(x) = 0 < p(x)", "rejects: [0] or [1]", [0], [[0, 1 / 4, 3 / 4]], [[1 / 4, 1 / 2, 1 / 4], _SOME],
          [(u, 1 / 2) for u in ENDS], among((0,), (1,)), always=True, ratio=True),
    Probe("p = q, u = 1 − 2^-24", "accepts", [0], [_SOME], [_SOME, _SOME],
          [(LAST24, 1 / 2)], among((0, 0), (0, 1), (0, 2)), ratio=True),
    Probe("p = q, u = 1 − 2^-53", "accepts", [0], [_SOME], [_SOME, _SOME],
          [(LAST53, 1 / 2)], among((0, 0), (0, 1), (0, 2)), ratio=True),
    Probe("p = q", "tokens", [1], [_SOME], [_SOME, _SOME], [(u, u) for u in QUARTERS], _TOKENS, always=True),
    Probe("p = q (1 − 2^-24)", "tokens", [1], [_SOME], [[x * LAST24 for x in _SOME], _SOME],
          [(LAST53, u) for u in QUARTERS], _TOKENS, always=True),
    Probe("empty residual", "p: [0] or [1]", [2], [[1 / 4, 3 / 4, 0]], [[1 / 4, 3 / 4, 0], _SOME],
          [(1 / 2, u) for u in QUARTERS], among((0,), (1,)), always=True),
    Probe("empty residual, its law", "p: [0] once, [1] three times", [2], [[1 / 4, 3 / 4, 0]],
          [[1 / 4, 3 / 4, 0], _SOME], [(u, u) for u in QUARTERS], shared({(0,): 1, (1,): 3})),
    Probe("residual of mass 2^-20", "[0] or [1]", **_TINY_RESIDUAL,
          uniforms=[(LAST53, u) for u in ENDS], holds=among((0,), (1,)), ratio=True),
    Probe("residual of mass 2^-20, its law", "[0] once, [1] three times", **_TINY_RESIDUAL,
          uniforms=[(LAST53, u) for u in QUARTERS], holds=shared({(0,): 1, (1,): 3}), ratio=True),
    Probe("bonus, u at both ends", "[1], [1, 1] or [1, 2]", [1], [[0, 1, 0, 0]], [[0, 1, 0, 0], [0, 1 / 2, 1 / 2, 0]],
          [(1 / 2, u) for u in ENDS], among((1,), (1, 1), (1, 2)), always=True),
    Probe("p(1) = NaN", "an error, or never token 1", [1], [[1 / 4, 1 / 2, 1 / 4]],
          [[1 / 2, float("nan"), 1 / 2], _SOME], [(1 / 2, u) for u in ENDS], _never(1), always=True),
)  # fmt: skip


def probe(sampler: Sampler, probes: Iterable[Probe], injectable: bool) -> tuple[Probed, ...]:
    """Return what came of each probe, and last whether the inputs were unchanged after all their calls."""
    changed: list[str] = []
    results = [_one(sampler, each, injectable, changed) for each in probes]
    last = Probed("inputs after a call", "unchanged", f"changed: {changed[0]}" if changed else "unchanged", not changed)
    return (*results, last)


def _one(sampler: Sampler, probe: Probe, injectable: bool, changed: list[str]) -> Probed:
    if not injectable and not probe.always:
        return Probed(probe.name, probe.expected, "not tried", None)
    calls = [(np.array(u),) for u in probe.uniforms] if injectable else [()] * REPEATS
    rows = np.array(probe.draft, np.int64), np.array(probe.q, np.float64), np.array(probe.p, np.float64)
    outcomes = []
    for uniforms in calls:
        given, untouched = ([array.copy() for array in (*rows, *uniforms)] for _ in range(2))
        outcomes.append(ask(sampler, *given))
        same = all(np.array_equal(*pair, equal_nan=True) for pair in zip(given, untouched, strict=True))
        changed += [] if same else [probe.name]
    return Probed(probe.name, probe.expected, _shown(outcomes), probe.holds(outcomes))


def _shown(outcomes: list[Outcome]) -> str:
    """Return the different outcomes, in the order they came."""
    return ", ".join(str(list(each)) if isinstance(each, tuple) else str(each) for each in dict.fromkeys(outcomes))
