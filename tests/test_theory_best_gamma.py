"""The best γ: what a search finds, next to Lambert's W, and proved."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest
import scipy.special
import sympy

from specnb import theory
from specnb.errors import SpecnbError
from specnb.theory import algebra, best_gamma

ROUNDING = 1e-13
"""A few dozen roundings of float64, relative."""


def test_best_gamma_is_what_a_search_finds_and_next_to_lamberts_w():
    alpha, c, v = np.meshgrid(
        np.r_[0.013:0.99:25j, 0.995], [0.004, 0.02, 0.05, 0.1, 0.37, 0.9, 2], [0.4, 1, 1.7, 3.5], indexing="ij"
    )
    most = 1500
    speeds = theory.speedup(alpha[..., None], np.arange(most + 1), c[..., None], v[..., None])
    best = theory.optimal_gamma(alpha, c, v)
    assert best.dtype == np.int64
    assert best.max() < most
    assert (best == speeds.argmax(-1)).all()
    capped = theory.optimal_gamma(alpha, c, v, max_gamma=6)
    assert (capped == speeds[..., :7].argmax(-1)).all()

    L, worth = -np.log(alpha), alpha * v > c
    argument = -np.exp(-1 - L * (v - c) / c)
    known = worth & (argument < -1e-300)
    u = -scipy.special.lambertw(argument[known], -1).real
    closed = (u - 1) / L[known] - v[known] / c[known]
    assert theory.stationary_gamma(alpha, c, v)[known] == pytest.approx(closed, rel=1e-7, abs=1e-7)  # SciPy at −1/e
    assert (abs(best - theory.stationary_gamma(alpha, c, v))[worth] < 1).all()
    assert (best[~worth] == 0).all()
    assert known.sum() > 300


def test_speedup_rises_to_one_best_gamma_and_falls():
    alpha, c, v = np.meshgrid(np.r_[0.05:0.95:19j], [0.01, 0.05, 0.2], [1, 2.5], indexing="ij")
    speeds = theory.speedup(alpha[..., None], np.arange(200), c[..., None], v[..., None])
    before = np.arange(1, 200) <= theory.optimal_gamma(alpha, c, v)[..., None]
    change = np.diff(speeds)
    assert (change[before] > 0).all()
    assert (change[~before] < ROUNDING).all()


def test_least_gamma_by_the_rule():
    for alpha, c, v in [(0.8, 0.02, 1), (0.75, 0.05, 1), (0.9, 0.01, 3.5), (0.5, 0.4, 1)]:
        a, c_exact = Fraction(alpha), Fraction(c)
        kept = (sum(a**i for i in range(gamma + 1)) for gamma in itertools.count())
        holds = (g for g, E in enumerate(kept) if a ** (g + 1) * (v + g * c_exact) <= c_exact * E)
        assert theory.optimal_gamma(alpha, c, v) == next(holds)


def test_closed_form_in_symbols():
    a, c, v = Fraction(4, 5), Fraction(1, 50), Fraction(3, 2)
    symbolic = theory.stationary_gamma(theory.alpha, theory.c, theory.v)
    value = symbolic.subs({theory.alpha: sympy.Rational(a), theory.c: sympy.Rational(c), theory.v: sympy.Rational(v)})
    assert symbolic.has(sympy.LambertW)
    assert theory.stationary_gamma(0.8, 0.02, 1.5) == pytest.approx(float(value), rel=ROUNDING)
    slope = sympy.diff(algebra.GEOMETRIC / algebra.COST, algebra.gamma)
    at = {algebra.alpha: sympy.Rational(a), algebra.c: sympy.Rational(c), algebra.v: sympy.Rational(v)}
    assert abs(slope.subs(at).subs(algebra.gamma, value).evalf(50)) < 1e-40


def test_the_closed_form_where_the_argument_of_w_underflows():
    """At K = 4·10^4 float64 has e^−K = 0; SymPy's 60 digits are the judge."""
    exact = theory.stationary_gamma(Fraction(1, 100), Fraction(1, 10000)).evalf(60)
    assert theory.stationary_gamma(0.01, 1e-4) == pytest.approx(float(exact), rel=1e-11)
    assert theory.optimal_gamma(0.01, 1e-300) > 100


def test_no_draft_and_perfect_drafts():
    assert theory.optimal_gamma(0, 0) == 0
    assert theory.optimal_gamma(0, 0.1) == 0
    assert theory.optimal_gamma(1, 2, v=1.5) == 0
    assert theory.optimal_gamma([0.8, 1.0, 0.8], [0, 0.1, 0.02], max_gamma=9).tolist() == [9, 9, 9]
    assert theory.optimal_gamma(0.8, 0.02, max_gamma=0) == 0
    assert theory.expected_tokens(0, [0, 3]).tolist() == [1, 1]
    assert theory.expected_tokens(1, [0, 3]).tolist() == [1, 4]
    assert theory.expected_tokens(1) == np.inf
    assert theory.expected_tokens(Fraction(1)) == sympy.oo
    assert theory.token_variance(1, 3) == theory.token_variance(0, 3) == 0
    assert theory.stationary_gamma(0.8, 0) == np.inf
    assert theory.sensitivity(1, 4, 0).alpha == 10
    assert theory.sensitivity(0, 4, 0) == (1, -4, -1)


def test_the_best_gamma_is_proved():
    assert repr(theory.best_gamma_proof()) == "Proof('The best γ': 11 steps verified in 11 cases)"


@pytest.mark.parametrize(
    ("step", "words"),
    [
        (lambda: best_gamma._equal("E", algebra.GEOMETRIC, algebra.alpha, "E"), "'E' is false"),
        (lambda: best_gamma._positive("s", algebra.c - algebra.v), "'s' isn't known"),
        (lambda: best_gamma._positive("s", algebra.alpha - 1), "'s' isn't known"),
    ],
)
def test_a_false_step_cant_be_made(step, words):
    with pytest.raises(SpecnbError, match=words):
        step()


def test_the_rule_has_the_sign_of_the_proofs_numerator():
    assert sympy.simplify(algebra.RULE - (1 - algebra.alpha) * best_gamma.D) == 0


def test_a_million_best_gammas_are_the_search_of_a_thousand():
    rng = np.random.default_rng(1)
    alpha, c, v = rng.uniform(0.01, 0.97, 10**6), rng.uniform(0.01, 1, 10**6), rng.uniform(0.5, 4, 10**6)
    best = theory.optimal_gamma(alpha, c, v)
    some = slice(None, None, 1000)
    speeds = theory.speedup(alpha[some, None], np.arange(400), c[some, None], v[some, None])
    assert (best[some] == speeds.argmax(-1)).all()
