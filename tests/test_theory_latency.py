"""When speculation breaks even, what the speedup is sensitive to, the time of a generation, and the curves of it."""

from __future__ import annotations

import itertools

import matplotlib.pyplot as plt
import numpy as np
import pytest

from specnb import theory, theory_plots
from specnb.errors import SpecnbError

ROUNDING = 1e-13
"""A few dozen roundings of float64, relative."""


def test_break_even():
    assert theory.break_even(1, 0.05, 1.2) == pytest.approx(0.25, rel=ROUNDING)
    c, v = np.array([[0.05], [0.2], [0.5]]), np.array([1, 1.2, 1.45])
    assert theory.break_even(1, c, v) == pytest.approx(c + v - 1, rel=ROUNDING)
    for gamma in (2, 4, 9):
        least = theory.break_even(gamma, c, v)
        assert theory.speedup(least, gamma, c, v) == pytest.approx(np.ones((3, 3)), rel=ROUNDING)
    assert theory.break_even([1, 4], [0, 0.1], [0.9, 0.6]).tolist() == [0, 0]
    assert np.isnan(theory.break_even(2, 0.5, 2.5))
    assert theory.break_even(2, 0.5, 2.0) == 1


def test_with_v_1_some_gamma_pays_iff_alpha_is_above_c():
    alpha, c = np.meshgrid(np.r_[0.02:0.98:49j], np.r_[0.01:0.97:49j])
    best = theory.speedup(alpha, theory.optimal_gamma(alpha, c), c)
    assert ((best > 1) == (alpha > c)).all()


def test_sensitivities_are_differences():
    at, step = {"alpha": 0.8, "c": 0.05, "v": 1.3}, 1e-6
    for name, slope in theory.sensitivity(0.8, 4, 0.05, 1.3)._asdict().items():
        up, down = (theory.speedup(gamma=4, **(at | {name: at[name] + sign * step})) for sign in (1, -1))
        assert slope == pytest.approx((up - down) / (2 * step), rel=1e-8)  # the difference's own rounding


def test_steps_of_a_short_generation():
    """Three tokens, γ = 1: two steps unless the first two both reject."""
    assert theory.steps_law(3, 0.5, 1).tolist() == [0, 0, 0.75, 0.25]
    assert theory.steps_law(0, 0.5, 1).tolist() == [1]
    assert theory.steps_law(4, 0, 3).tolist() == [0, 0, 0, 0, 1]
    assert theory.steps_law(9, 1, 3).tolist() == [0, 0, 0, 1, *[0] * 6]
    assert theory.steps_law(3, [0.5]).tolist() == theory.steps_law(3, 0.5, 1).tolist()


@pytest.mark.parametrize(("tokens", "alpha", "gamma"), [(5, 0.7, 2), (6, 0.4, 3)])
def test_steps_by_enumeration(tokens, alpha, gamma):
    law, counts = theory.token_law(alpha, gamma), range(1, gamma + 2)
    expected = np.zeros(tokens + 1)
    for path in itertools.product(counts, repeat=tokens):
        needed = next(k for k in range(1, tokens + 1) if sum(path[:k]) >= tokens)
        expected[needed] += np.prod([law[n - 1] for n in path])
    assert theory.steps_law(tokens, alpha, gamma) == pytest.approx(expected, rel=ROUNDING)


def test_steps_of_a_long_generation_are_nearly_normal():
    """By the central limit theorem for renewals: mean N/E, variance N·Var/E³, and 1 % of that for N = 2000."""
    law, k = theory.steps_law(2000, 0.8, 5), np.arange(2001)
    mean, E = (law * k).sum(), theory.expected_tokens(0.8, 5)
    assert law.sum() == pytest.approx(1, rel=ROUNDING)
    assert mean == pytest.approx(2000 / E, rel=0.01)
    assert (law * (k - mean) ** 2).sum() == pytest.approx(2000 * theory.token_variance(0.8, 5) / E**3, rel=0.01)


def test_latency_percentiles():
    times = theory.latency_percentiles(100, 0.8, 4, c=0.05, percentiles=[50, 90, 99])
    below = theory.steps_law(100, 0.8, 4).cumsum()
    steps = np.rint(times / 1.2).astype(int)
    assert steps.tolist() == [30, 34, 37]
    assert (below[steps] >= [0.5, 0.9, 0.99]).all()
    assert (below[steps - 1] < [0.5, 0.9, 0.99]).all()
    assert theory.latency_percentiles(100, 1, 4, c=0.05).tolist() == pytest.approx([20 * 1.2] * 3)
    assert theory.latency_percentiles(8, [1, 1], None, c=0, v=2).tolist() == [6, 6, 6]
    assert theory.latency_percentiles(3, 0.5, 1, c=0, percentiles=[75, 76]).tolist() == [2, 3]


def test_tables_of_curves():
    data = theory_plots.table(theory.expected_tokens, alpha=[0.5, 0.8], gamma=[1, 2])
    assert data.columns.tolist() == ["alpha", "gamma", "value"]
    assert data["value"].tolist() == pytest.approx([1.5, 1.75, 1.8, 2.44], rel=ROUNDING)


def test_curves_carry_labels_rings_and_markers():
    data = theory_plots.table(lambda alpha, gamma: theory.speedup(alpha, gamma, 0.1), alpha=[0.5, 0.8], gamma=range(9))
    options = {"x": "gamma", "by": "alpha", "title": "Which?", "labels": ("drafts (tokens)", "α = {}"), "best": True}
    figure = theory_plots.curves({"speedup": data, "again": data}, **options, level=(1, "plain"))
    assert plt.get_fignums() == []
    axes = figure.axes[0]
    assert (axes.get_xlabel(), axes.get_ylabel(), figure.get_suptitle()) == ("drafts (tokens)", "speedup", "Which?")
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["α = 0.5", "α = 0.8", "plain"]
    first, ring, second, _, plain = axes.lines
    assert first.get_marker() != second.get_marker()
    assert ring.get_xdata() == [theory.optimal_gamma(0.5, 0.1)]
    assert set(plain.get_ydata()) == {1}
    low = {"speedup": data, "lower": data.assign(value=data["value"] / 3)}
    for shared in (False, True):
        limits = [axes.get_ylim() for axes in theory_plots.curves(low, **options, shared=shared).axes]
        assert (limits[0] == limits[1]) is shared
    with pytest.raises(SpecnbError, match="no column alpha; it has gamma, value"):
        theory_plots.curves({"speedup": data.drop(columns="alpha")}, **options)
