"""The algebra of speed: the printed numbers, one meaning for numbers, arrays and symbols, and what is refused."""

from __future__ import annotations

import itertools
import subprocess
import sys
from fractions import Fraction

import numpy as np
import pytest
import sympy

from specnb import laws, theory
from specnb.errors import SpecnbError
from specnb.theory import algebra

ROUNDING = 1e-13
"""A few dozen roundings of float64, relative."""

ALPHAS = np.array([0, 1e-9, 0.2, 0.5, 0.7, 0.8, 0.95, 1 - 1e-6, 1 - 1e-12, 1])
GAMMAS = np.array([0, 1, 2, 5, 40])


def close(found, expected):
    return found == pytest.approx(expected, rel=ROUNDING, abs=ROUNDING)


@pytest.mark.parametrize(
    ("alpha", "gamma", "c", "v", "tokens", "speed"),
    [
        (0.7, 3, 0.1, 1, "2.533", "1.95"),
        (0, 3, 0.1, 1, "1.000", "0.77"),
        (1, 3, 0.1, 1, "4.000", "3.08"),
        (0.8, 4, 0.05, 1, "3.362", "2.80"),
        (0.8, 4, 0.05, 3.5, "3.362", "0.91"),
        (0.6, 2, 0, 1, "1.960", "1.96"),
        (0.7, 3, 0, 1, "2.533", "2.53"),
        (0.8, 2, 0, 1, "2.440", "2.44"),
        (0.8, 5, 0, 1, "3.689", "3.69"),
        (0.9, 2, 0, 1, "2.710", "2.71"),
        (0.9, 10, 0, 1, "6.862", "6.86"),
        (0.2, 3, 0, 1, "1.248", "1.25"),
    ],
)
def test_printed_speedups(alpha, gamma, c, v, tokens, speed):
    assert f"{theory.expected_tokens(alpha, gamma):.3f}" == tokens
    assert f"{theory.speedup(alpha, gamma, c, v):.2f}" == speed


def test_expected_tokens_that_are_printed_exactly():
    assert theory.expected_tokens(Fraction(4, 5), 4) == sympy.Rational(33616, 10000)
    assert theory.expected_tokens(Fraction(7, 10), 3) == sympy.Rational(2533, 1000)


@pytest.mark.parametrize(
    ("alpha", "gamma", "operations"),
    [(0.6, 2, "1.53"), (0.7, 3, "1.58"), (0.8, 2, "1.23"), (0.8, 5, "1.63"), (0.9, 2, "1.11"), (0.9, 10, "1.60")],
)
def test_operations_of_leviathans_table(alpha, gamma, operations):
    assert f"{theory.operations_factor(alpha, gamma):.2f}" == operations


# A teardown's rows beside what its own formula gives: printed, at the printed γ, and at the best γ.
TEARDOWN = [
    (0.02, 0.80, (7, "4.16", "3.65"), ("4.161", "3.650"), (11, "4.6564", "3.8167")),
    (0.05, 0.75, (5, "3.29", "2.63"), ("3.288", "2.630"), (7, "3.5995", "2.6663")),
    (0.10, 0.70, (4, "2.53", "1.81"), ("2.773", "1.981"), (4, "2.7731", "1.9808")),
]


@pytest.mark.parametrize(("c", "alpha", "printed", "there", "best"), TEARDOWN)
def test_teardown_and_what_is_right(c, alpha, printed, there, best):
    gamma = printed[0]
    tokens, speed = theory.expected_tokens(alpha, gamma), theory.speedup(alpha, gamma, c)
    assert (f"{tokens:.3f}", f"{speed:.3f}") == there
    gamma = theory.optimal_gamma(alpha, c)
    tokens, speed = theory.expected_tokens(alpha, gamma), theory.speedup(alpha, gamma, c)
    assert (gamma, f"{tokens:.4f}", f"{speed:.4f}") == best


def test_teardowns_third_row_mixes_two_gammas_and_its_fourth_has_no_best():
    """Its tokens are those of γ = 3, over the cost of γ = 4: that is 1.81 and no speedup of any γ."""
    assert f"{theory.expected_tokens(0.7, 3):.2f}" == "2.53"
    assert f"{theory.expected_tokens(0.7, 3) / (1 + 4 * 0.1):.2f}" == "1.81"
    assert f"{theory.speedup(0.8, 5, 0):.3f}" == "3.689"
    assert close(theory.expected_tokens(0.8), 5)
    assert f"{theory.speedup(0.75, 6, 0.05):.4f}" == "2.6662"


@pytest.mark.parametrize(
    ("alpha", "c", "gamma", "speed"),
    [(0.5, 0.01, 5, "1.8750"), (0.9, 0.01, 24, "7.4856"), (0.3, 0.3, 0, "1.0000"), (0.7, 0.7, 0, "1.0000")],
)
def test_best_gammas(alpha, c, gamma, speed):
    assert theory.optimal_gamma(alpha, c) == gamma
    assert f"{theory.speedup(alpha, gamma, c):.4f}" == speed


def test_variance_that_is_printed():
    assert f"{theory.token_variance(0.8, 5):.6f}" == "3.864093"
    assert theory.token_variance(Fraction(4, 5), 5) == sympy.Rational("3.8640930816")


SPEED = {
    "expected_tokens": (theory.expected_tokens, ()),
    "token_variance": (theory.token_variance, ()),
    "speedup": (theory.speedup, (Fraction(1, 20), Fraction(3, 2))),
    "operations_factor": (theory.operations_factor, (Fraction(1, 50),)),
    **{
        f"sensitivity to {name}": (lambda *a, name=name: getattr(theory.sensitivity(*a), name),
                                   (Fraction(1, 20), Fraction(3, 2)))
        for name in ("alpha", "c", "v")
    },
}  # fmt: skip


@pytest.mark.parametrize("name", SPEED)
def test_arrays_are_scalars_are_sympy(name):
    """The exact value at the very float64 that came, by SymPy's closed form, is the measure of both."""
    function, costs = SPEED[name]
    numbers = [float(cost) for cost in costs]
    grid = function(ALPHAS[:, None], GAMMAS, *numbers)
    assert grid.shape == (len(ALPHAS), len(GAMMAS))
    formula = function(theory.alpha, theory.gamma, *costs)
    for (i, alpha), (j, gamma) in itertools.product(enumerate(ALPHAS), enumerate(GAMMAS)):
        scalar = function(float(alpha), int(gamma), *numbers)
        exact = function(Fraction(float(alpha)), int(gamma), *costs)
        assert type(scalar) is float
        assert scalar == pytest.approx(grid[i, j], rel=ROUNDING)  # sums over a longer axis add in another order
        assert exact.is_Rational
        assert scalar == pytest.approx(float(exact), rel=ROUNDING)
        substituted = formula.subs({theory.alpha: sympy.Rational(Fraction(float(alpha))), theory.gamma: int(gamma)})
        assert sympy.simplify(substituted - exact) == 0


def test_symbols_give_the_formulas():
    a, g, c, v = theory.alpha, theory.gamma, theory.c, theory.v
    pieces = theory.speedup(a, g, c, v).subs(a, sympy.Rational(7, 10))
    assert sympy.simplify(pieces - (1 - sympy.Rational(7, 10) ** (g + 1)) / (sympy.Rational(3, 10) * (g * c + v))) == 0
    assert theory.expected_tokens(a, g).subs(a, 1) == g + 1
    x, y = sympy.symbols("x y", positive=True)
    assert theory.expected_tokens([x, y]) == 1 + x + x * y
    assert theory.speedup([x, y], None, c, v) == (1 + x + x * y) / (2 * c + v)
    assert sympy.expand(theory.token_variance([x, x]) - x * (1 + 3 * x) + (x + x**2) ** 2) == 0
    assert list(theory.token_law(x, 2)) == [1 - x, x * (1 - x), x**2]
    assert theory.expected_tokens(a).subs(a, sympy.Rational(1, 2)) == 2


def test_variance_agrees_with_its_closed_form_and_the_law():
    a = theory.alpha
    for gamma in range(7):
        law, mean = theory.token_law(a, gamma), sum(a**i for i in range(gamma + 1))
        second = sum(chance * n**2 for n, chance in enumerate(law, 1))
        assert sympy.cancel(algebra.VARIANCE.args[1][0].subs(algebra.gamma, gamma) - second + mean**2) == 0


def test_two_forms_of_the_mean_are_one():
    for gamma in range(1, 7):
        in_floats = algebra.TOKENS_IN_FLOATS.args[-1][0].subs(algebra.gamma, gamma).rewrite(sympy.exp)
        assert sympy.simplify(in_floats - algebra.GEOMETRIC.subs(algebra.gamma, gamma)) == 0


@pytest.mark.parametrize("gamma", [1, 2, 3])
def test_mean_and_law_are_those_of_the_token_rule(gamma):
    """The algebra's tokens per step are the rule's own, enumerated over all drafts in fractions."""
    tenths = {"p": (5, 3, 2), "q": (2, 3, 5)}
    rows = {name: [Fraction(tenth, 10) for tenth in row] for name, row in tenths.items()}
    alpha = 1 - laws.total_variation(**rows)
    assert theory.expected_tokens(alpha, gamma) == 1 + laws.expected_accepted("token", **rows, gamma=gamma)
    assert theory.token_law(alpha, gamma).tolist() == laws.accepted_law("token", **rows, gamma=gamma).tolist()


def test_acceptances_by_position():
    profile = [0.9, 0.7, 0.4]
    assert close(theory.expected_tokens(profile), 1 + 0.9 + 0.63 + 0.252)
    assert close(theory.token_law(profile).tolist(), [0.1, 0.27, 0.378, 0.252])
    assert close(theory.speedup(profile, None, 0.1), 2.782 / 1.3)
    assert close(theory.operations_factor(profile, None), 4 / 2.782)
    assert close(theory.token_variance(profile), 0.1 + 4 * 0.27 + 9 * 0.378 + 16 * 0.252 - 2.782**2)
    assert theory.expected_tokens([]) == 1
    batch = np.array([profile, [0.5, 0.5, 0.5]])
    assert close(theory.expected_tokens(batch).tolist(), [2.782, theory.expected_tokens(0.5, 3)])
    assert theory.token_variance(batch)[1] == theory.token_variance(0.5, 3)
    assert theory.expected_tokens([Fraction(1, 2), Fraction(1, 3)]) == sympy.Rational(5, 3)


def test_given_gamma_an_array_is_many_alphas():
    assert close(theory.expected_tokens([0.5, 0.8], 2).tolist(), [1.75, 2.44])


def test_law_for_several_gammas_ends_in_zeros():
    law = theory.token_law(0.5, [[0], [2]])
    assert law.tolist() == [[[1, 0, 0]], [[0.5, 0.25, 0.25]]]
    assert close(theory.token_law(ALPHAS[:, None], GAMMAS).sum(-1), np.ones((len(ALPHAS), len(GAMMAS))))


def test_mean_and_variance_of_simulated_steps():
    """Half a million steps; 5 standard errors, which one in 3.5 million runs would exceed (the seed is fixed)."""
    steps, rng = 500_000, np.random.default_rng(0)
    for alpha, gamma in [(0.8, 5), (0.3, 2), (0.95, 8)]:
        emitted = 1 + np.cumprod(rng.random((steps, gamma)) < alpha, axis=1).sum(axis=1)
        law, mean = theory.token_law(alpha, gamma), theory.expected_tokens(alpha, gamma)
        variance = theory.token_variance(alpha, gamma)
        fourth = (law * (np.arange(1, gamma + 2) - mean) ** 4).sum()
        assert abs(emitted.mean() - mean) < 5 * np.sqrt(variance / steps)
        assert abs(emitted.var() - variance) < 5 * np.sqrt((fourth - variance**2) / steps)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: theory.expected_tokens(1.2, 3), r"alpha is 1\.2; expected a probability in \[0, 1\]"),
        (lambda: theory.expected_tokens([[0.1, 2]], 3), r"alpha\[0, 1\] is 2; expected a probability"),
        (lambda: theory.expected_tokens(float("nan"), 3), "alpha is nan"),
        (lambda: theory.expected_tokens("a lot", 3), "alpha is 'a lot'"),
        (lambda: theory.expected_tokens([[0.1], [0.2, 0.3]]), r"alpha is \[\[0\.1\], \[0\.2, 0\.3\]\]"),
        (lambda: theory.expected_tokens(Fraction(5, 4), 2), "alpha is 5/4; expected a probability"),
        (lambda: theory.expected_tokens([theory.alpha, -1]), "alpha is -1"),
        (lambda: theory.expected_tokens(sympy.I, 2), "alpha is I"),
        (lambda: theory.expected_tokens(0.5, 2.5), r"gamma is 2\.5; expected an integer >= 0"),
        (lambda: theory.expected_tokens(0.5, -1), "gamma is -1"),
        (lambda: theory.expected_tokens(0.5, np.inf), "gamma is inf"),
        (lambda: theory.expected_tokens([0.5, 0.6], [1, 2, 3]), r"the shapes are alpha \(2,\), gamma \(3,\)"),
        (lambda: theory.token_law([0.5, 0.6], [1, 2, 3]), r"the shapes are alpha \(2,\), gamma \(3,\)"),
        (lambda: theory.optimal_gamma([0.5, 0.6], [0.1, 0.2, 0.3]), r"the shapes are alpha \(2,\), c \(3,\), v \(\)"),
        (lambda: theory.expected_tokens(theory.alpha, [1, 2]), "gamma is an array beside SymPy expressions"),
        (lambda: theory.token_law(theory.alpha, theory.gamma), "gamma is gamma; expected one integer"),
        (lambda: theory.speedup(0.8, None, 0.1), "gamma is None; expected an integer >= 0, or alpha as"),
        (lambda: theory.token_variance(0.8), "gamma is None"),
        (lambda: theory.speedup(0.8, 3, -0.1), r"c is -0\.1; expected a finite cost >= 0"),
        (lambda: theory.speedup(0.8, 3, 0.1, 0), "v is 0; expected a finite cost > 0"),
        (lambda: theory.speedup(0.8, 3, theory.c, 0), "v is 0; expected a finite cost > 0"),
        (lambda: theory.operations_factor(0.8, 3, np.inf), "c_hat is inf"),
        (lambda: theory.break_even(theory.gamma, 0.1), "break_even solves for numbers"),
        (lambda: theory.optimal_gamma(theory.alpha, 0.1), "expected numbers .stationary_gamma is"),
        (lambda: theory.optimal_gamma(0.8, 0), r"no γ is best for alpha = 0\.8, c = 0.* the speedup rises to 5/v; exp"),
        (lambda: theory.optimal_gamma(1, 0.1), "no γ is best for alpha = 1, .* perfect draft"),
        (lambda: theory.optimal_gamma(0.8, 0.1, max_gamma=1.5), r"max_gamma is 1\.5"),
        (lambda: theory.steps_law([3, 4], 0.5, 1), r"tokens is \[3, 4\]; expected one integer"),
        (lambda: theory.steps_law(3, [0.5, 0.6], 1), r"laws of shape \(2, 2\); expected one law"),
        (lambda: theory.steps_law(3, theory.alpha, 1), "alpha is alpha; expected numbers"),
        (lambda: theory.latency_percentiles(3, 0.5, 1, 0.1, percentiles=[100]), "expected numbers between 0 and 100"),
    ],
)  # fmt: skip
def test_what_is_refused(call, sentence):
    with pytest.raises(SpecnbError, match=sentence):
        call()


def test_inputs_stay_as_they_are():
    alpha, gamma = np.array([0.5, 0.8]), np.array([3, 4])
    theory.speedup(alpha, gamma, 0.1)
    theory.optimal_gamma(alpha, 0.1)
    theory.token_variance(alpha, gamma)
    assert alpha.tolist() == [0.5, 0.8]
    assert gamma.tolist() == [3, 4]


def test_theory_loads_no_torch():
    code = "import sys, specnb.theory; print({'torch', 'transformers', 'matplotlib'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
