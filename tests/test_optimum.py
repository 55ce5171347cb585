"""The LP over all lossless rules: block attains it, nothing lossless exceeds it, and lossy rules do."""

from __future__ import annotations

import sys
from fractions import Fraction as F

import numpy as np
import pytest

from specnb import laws, rules
from specnb.arithmetic import FLOAT64
from specnb.errors import SpecnbError
from specnb.laws.examples import KINDS, trees
from specnb.laws.joint import accepted_laws
from specnb.laws.optimum import most_accepted
from specnb.laws.scenarios import Scenario

TOY = {"p": [F(1, 3), F(2, 3)], "q": [F(2, 3), F(1, 3)]}
SEP = {"p": [F(3, 12), F(5, 12), F(4, 12)], "q": [F(2, 12), F(9, 12), F(1, 12)]}

# The bar of the optimum: HiGHS works to 1e-10, and drops coefficients below 1e-9.
OPTIMAL = 1e-9


@pytest.mark.parametrize(
    ("rows", "gamma", "best"), [(TOY, 1, F(2, 3)), (TOY, 2, F(11, 9)), (TOY, 3, F(5, 3)), (SEP, 2, F(169, 144))]
)
def test_block_is_optimal(rows, gamma, best):
    assert laws.expected_accepted("block", **rows, gamma=gamma) == best
    assert abs(laws.best_expected_accepted(**rows, gamma=gamma) - best) < OPTIMAL


def _accepted(rule, target, drafted, gamma):
    return accepted_laws(Scenario(rule), target, drafted, gamma, FLOAT64) @ np.arange(gamma + 1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("V", "gamma"), [(2, 1), (2, 3), (3, 2), (3, 3), (4, 2)])
def test_block_is_optimal_on_rows_that_depend_on_the_prefix(V, gamma, kind):
    examples = trees(kind, vocabulary=V, gamma=gamma, steps=1, examples=10, seed=3)
    best = most_accepted(*examples, gamma)
    assert abs(_accepted("block", *examples, gamma) - best).max() < OPTIMAL
    for rule in ("token", "match", "coupled"):
        assert (_accepted(rule, *examples, gamma) < best + OPTIMAL).all()


def test_token_is_not_optimal_and_lenient_is_above():
    examples = trees("random", vocabulary=3, gamma=2, steps=1, examples=10, seed=3)
    best = most_accepted(*examples, 2)
    assert (_accepted("token", *examples, 2) < best - 1e-3).any()
    assert (_accepted(rules.lenient(0.5), *examples, 2) > best + 1e-3).any()


def test_extremes():
    def after(prefix):
        return [[F(1), F(0)], [F(1, 4), F(3, 4)]][sum(prefix) % 2]

    assert laws.best_expected_accepted(p=after, q=after, gamma=3) == pytest.approx(3, abs=OPTIMAL)
    assert laws.best_expected_accepted(p=[1.0, 0.0], q=[0.0, 1.0], gamma=3) == pytest.approx(0, abs=OPTIMAL)
    assert laws.best_expected_accepted(**TOY, gamma=0) == 0


@pytest.mark.parametrize("concentration", [0.1, 0.03])
def test_masses_below_every_tolerance(concentration):
    """HiGHS with its presolve calls some of these infeasible."""
    rng = np.random.default_rng(0)
    for V, gamma in [(2, 2), (2, 3), (3, 2)]:
        target, drafted = (
            [rng.dirichlet(np.full(V, concentration), (40, V**k)) for k in range(gamma + 1)] for _ in range(2)
        )
        difference = _accepted("block", target, drafted, gamma) - most_accepted(target, drafted, gamma)
        assert abs(difference).max() < OPTIMAL


def test_float32_rows():
    p = np.array([0.3, 0.3, 0.4], np.float32)
    q = np.array([0.5, 0.3, 0.2], np.float32) * np.float32(1.00005)
    assert laws.best_expected_accepted(p=p, q=q, gamma=2) == pytest.approx(
        laws.expected_accepted("block", p=[0.3, 0.3, 0.4], q=[0.5, 0.3, 0.2], gamma=2), abs=1e-6
    )


def test_errors(monkeypatch):
    with pytest.raises(SpecnbError, match="gamma is -1; expected an integer >= 0"):
        laws.best_expected_accepted(**TOY, gamma=-1)
    with pytest.raises(SpecnbError, match="p has rows of 2 entries and q of 1"):
        laws.best_expected_accepted(p=TOY["p"], q=[F(1)], gamma=1)
    with pytest.raises(SpecnbError, match="p sums to 3/4; expected exactly 1"):
        laws.best_expected_accepted(p=[F(1, 4), F(1, 2)], q=TOY["q"], gamma=1)
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    with pytest.raises(SpecnbError, match="pip install scipy"):
        laws.best_expected_accepted(**TOY, gamma=1)
