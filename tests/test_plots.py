"""Pictures are tested as their tidy data, by what they say, and in greyscale; not by pixels."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

from specnb import plots
from specnb.errors import SpecnbError

P, Q = [0.5, 0.3, 0.2], [0.2, 0.3, 0.5]
POSITIONS = pd.DataFrame(
    {
        "position": [1, 2, 3],
        "reached": [900, 700, 500],
        "accepted": [680, 520, 370],
        "exact": [0.75, 0.74, 0.60],
    }
)

# One rounding per sum of a handful of float64 terms.
ROUNDING = 1e-14


@pytest.fixture
def figures():
    return {
        "one step": plots.one_step(plots.step_parts(P, Q, ["the", "a", "one"])),
        "ceiling": plots.ceiling(plots.ceiling_data(P, Q, gammas=(1, 3), mixtures=(0, 0.5, 1))),
        "positions": plots.acceptance_by_position(POSITIONS),
    }


def test_parts_of_a_step():
    parts = plots.step_parts(P, Q, ["the", "a", "one"])
    masses = parts.pivot(index="token", columns="part", values="mass")
    assert masses.loc["the"].round(12).to_dict() == {"kept": 0.2, "rejected": 0.0, "residual": 0.3}
    sums = parts.groupby("part")["mass"].sum()
    assert abs(sums["kept"] + sums["residual"] - 1) < ROUNDING
    assert abs(sums["rejected"] - sums["residual"]) < ROUNDING


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((P, Q[:2]), "p has 3 entries and q has 2; expected one vocabulary"),
        ((P, [1.0]), "p has 3 entries and q has 1"),
        ((P, Q, ["a", "b"]), "labels are .*; expected 3 different ones"),
        ((P, Q, ["a", "a", "b"]), "labels are .*; expected 3 different ones"),
        (([P], [Q]), r"p has shape \(1, 3\); expected one row"),
        ((P, "abc"), "q is 'abc' .*; expected a row"),
        (([[0.5], [0.5, 0.5]], Q), "p is .*; expected a row"),
    ],
)
def test_parts_that_dont_fit_are_refused(arguments, sentence):
    with pytest.raises(SpecnbError, match=sentence):
        plots.step_parts(*arguments)


def test_wilson_of_nothing_is_nan():
    assert np.isnan(plots.wilson(0, 0)).all()
    low, high = plots.wilson([0, 8], [0, 10])
    assert np.isnan([low[0], high[0]]).all()
    assert (low[1], high[1]) == plots.wilson(8, 10)
    for counts in ((2, 1), (-1, 1), (0, -1)):
        with pytest.raises(SpecnbError, match="expected 0 <= successes <= trials"):
            plots.wilson(*counts)


def test_ceiling_data_follows_the_geometric_sum():
    data = plots.ceiling_data(P, Q, gammas=(0, 1, 3), mixtures=np.linspace(0, 1, 5))
    assert data["alpha"].min() == pytest.approx(0.7)
    for gamma, alpha, tokens in data.itertuples(index=False):
        assert abs(tokens - sum(alpha**i for i in range(gamma + 1))) < ROUNDING
        assert tokens <= gamma + 1 + ROUNDING


def test_wilson_covers_what_it_promises():
    """Exact coverage at p = 0.3, n = 50 by the binomial itself; Wilson's is 0.95 give or take."""
    n, p = 50, 0.3
    counts = np.arange(n + 1)
    low, high = plots.wilson(counts, n)
    binomial = [np.prod([(n - i) / (i + 1) for i in range(k)]) * p**k * (1 - p) ** (n - k) for k in counts]
    assert np.dot(binomial, (low <= p) & (p <= high)) == pytest.approx(0.95, abs=0.02)


def test_figures_come_back_closed(figures):
    assert plt.get_fignums() == []


def test_axes_carry_what_they_measure_and_titles_the_answer(figures):
    labels = {name: (f.axes[0].get_xlabel(), f.axes[0].get_ylabel()) for name, f in figures.items()}
    assert labels == {
        "one step": ("token", "probability"),
        "ceiling": ("acceptance α (probability)", "mean tokens per target pass"),
        "positions": ("position in the draft", "acceptance (probability)"),
    }
    assert [f.axes[0].get_title(loc="left") for f in figures.values()] == [
        "Kept 0.70 + corrected 0.30 = the target; rejected: 0.30",
        "Mean tokens per step reach the ceiling γ + 1 only as α → 1",
        "The exact 1 − TV lies in 2 of 3 intervals",
    ]


def test_figures_don_t_depend_on_the_user_s_style():
    def size():
        figure = plots.acceptance_by_position(POSITIONS)
        return tuple(figure.get_size_inches()), figure.dpi

    with plt.rc_context({"figure.figsize": (2, 2), "figure.dpi": 50, "axes.titlelocation": "right"}):
        assert size() == size() == ((7, 3.6), 110)


def test_bars_differ_without_colour(figures):
    bars = [container[0] for container in figures["one step"].axes[0].containers]
    assert len({(bar.get_hatch(), bar.get_linestyle(), bar.get_facecolor()[3] > 0) for bar in bars}) == 3
