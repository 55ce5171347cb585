"""Pictures are tested as their tidy data, by what they say, and in greyscale; not by pixels."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

from specnb import laws, plots, rules
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

DRAFTS = {"α = 2/3": [2 / 3, 1 / 3], "α = 1": [1 / 3, 2 / 3]}
FAMILIES = {
    "token": ["token"],
    "p − q": [rules.lenient(0.5)],
    "p − lq": [rules.lenient(0.5, "p - lq")],
    "ensemble": [rules.ensemble(0.75)],
    "typical": [rules.typical(epsilon, delta=10) for epsilon in (0.1, 0.25)],
}

# One rounding per sum of a handful of float64 terms.
ROUNDING = 1e-14


@pytest.fixture
def figures():
    return {
        "one step": plots.one_step(plots.step_parts(P, Q, ["the", "a", "one"])),
        "ceiling": plots.ceiling(plots.ceiling_data(P, Q, gammas=(1, 3), mixtures=(0, 0.5, 1))),
        "positions": plots.acceptance_by_position(POSITIONS),
        "gain": plots.gain(plots.gain_data([1 / 3, 2 / 3], DRAFTS, gammas=(1, 2, 3))),
        "coupling": plots.coupling(plots.coupling_parts(P, Q, ["the", "a", "one"])),
        "tradeoff": plots.tradeoff(plots.tradeoff_data(FAMILIES, P, Q)),
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
    for parts in (plots.step_parts, plots.coupling_parts):
        with pytest.raises(SpecnbError, match=sentence):
            parts(*arguments)


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


def test_gain_data_is_exact():
    data = plots.gain_data([1 / 3, 2 / 3], DRAFTS, gammas=(1, 2, 3))
    assert data["draft"].tolist() == ["α = 2/3"] * 3 + ["α = 1"] * 3
    assert data["token"].tolist() == pytest.approx([2 / 3, 10 / 9, 38 / 27, 1, 2, 3], abs=ROUNDING)
    assert data["block"].tolist() == pytest.approx([2 / 3, 11 / 9, 5 / 3, 1, 2, 3], abs=ROUNDING)


def test_coupling_parts_overlap_as_often_as_coupled_accepts():
    parts = plots.coupling_parts([0.4, 0.3, 0.2, 0.1], [0.2, 0.3, 0.3, 0.2])
    both = parts[parts["part"] == "both"].set_index("token")[["low", "high"]].round(12)
    assert both.to_numpy().tolist() == [[0, 0.2], [0.4, 0.5], [0.7, 0.8], [0.9, 1]]
    for p, q in ((P, Q), (Q, P), ([1.0, 0.0, 0.0], [0.0, 0.5, 0.5])):
        widths = plots.coupling_parts(p, q).eval("width = high - low").groupby("part")["width"].sum()
        assert abs(widths["both"] - laws.expected_accepted("coupled", p=p, q=q, gamma=1)) < ROUNDING
        assert abs(widths[["draft", "target"]] - 1).max() < ROUNDING


def test_tradeoff_data_is_exact():
    data = plots.tradeoff_data(FAMILIES, P, Q)
    assert data["rule"].tolist()[:2] == ["token", "lenient(l=0.5, residual=p - q)"]
    assert data["alpha"].tolist() == pytest.approx([7 / 10, 9 / 10, 9 / 10, 31 / 40, 1, 1 / 2], abs=ROUNDING)
    assert data["tv"].tolist() == pytest.approx([0, 1 / 5, 5 / 22, 3 / 40, 3 / 10, 3 / 20], abs=ROUNDING)
    assert (data["best"] - data["tv"] - 7 / 10).abs().max() < ROUNDING
    assert (data["alpha"] <= data["best"] + ROUNDING).all()


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
        "gain": ("drafts per step γ (tokens)", "gain in accepted drafts (%)"),
        "coupling": ("uniform u, shared by draft and target (probability)", "interval of each token"),
        "tradeoff": ("total variation ε of the emitted token from p", "acceptance α (probability)"),
    }
    assert [f.axes[0].get_title(loc="left") for f in figures.values()] == [
        "Kept 0.70 + corrected 0.30 = the target; rejected: 0.30",
        "Mean tokens per step reach the ceiling γ + 1 only as α → 1",
        "The exact 1 − TV lies in 2 of 3 intervals",
        "Block accepts 0 to 18 % more drafts than token",
        "Draft and target agree for 0.40 of all u; 1 − TV is 0.70",
        "On the line: token, p − q, ensemble; below: p − lq, typical",
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


def test_markers_differ_without_colour(figures):
    legend = figures["tradeoff"].axes[0].get_legend().get_lines()
    assert len({line.get_marker() for line in legend}) == 1 + len(FAMILIES)
    lines = [line for line in figures["gain"].axes[0].get_lines() if len(line.get_xdata()) == 3]
    assert len({line.get_marker() for line in lines}) == len(lines) == len(DRAFTS)
    hatches = [{bar.get_hatch() for bar in container} for container in figures["coupling"].axes[0].containers]
    assert hatches == [{""}, {"//"}, {""}]
