"""Pictures of failures are tested by what they draw and say, and in greyscale; not by pixels."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_rgb

from specnb import failure_plots
from specnb.roofline import Chip, ModelShape, Speculation

HEAT = pd.DataFrame(
    [("at T", 1, 0.8), ("at T", 2, 0.85), ("greedy", 1, 0.3), ("greedy", 2, 0.125)],
    columns=["way", "temperature", "alpha"],
)
LEFT = pd.DataFrame({"left": [0, 1, 4], "tv": [0, 0.32, 0.46], "draft": [0.81, 0.7, 0.55], "both": [0.81, 0.77, 0.73]})
LEFT = LEFT.assign(tv_se=[0, 0.04, 0.05], draft_se=[0.02, 0.03, 0.06], both_se=[0.02, 0.01, 0.03])
PAIR = Speculation(
    Chip.named("H100 SXM"), ModelShape.named("Llama-3.1-8B"), ModelShape.named("Llama-3.2-1B"), context=512
)
BATCHES = [1, 64, 512]


@pytest.fixture
def figures():
    return {
        "temperatures": failure_plots.temperatures(HEAT),
        "forgotten": failure_plots.forgotten(LEFT),
        "fixed gamma": failure_plots.fixed_gamma(failure_plots.fixed_gamma_data(PAIR, 0.8, 4, BATCHES), 4),
    }


def test_titles_say_what_is_seen(figures):
    titles = {name: figure.axes[0].get_title("left") for name, figure in figures.items()}
    assert titles["temperatures"] == "Accepted at T = 2: at T, 0.85; greedy, 0.12"
    assert titles["forgotten"] == "4 left: the law is off by 0.46, and acceptance goes from 0.81 to 0.73"
    assert titles["fixed gamma"] == ("Predicted: γ = 4 loses from batch 512 on; the best γ stays at 1.09 or above")


def test_what_is_forgotten_is_drawn_with_its_standard_error(figures):
    bars = figures["forgotten"].axes[0].collections
    ends = np.array([segment[:, 1] for bar in bars for segment in bar.get_segments()])
    expected = np.concatenate(
        [np.c_[LEFT[n] - LEFT[f"{n}_se"], LEFT[n] + LEFT[f"{n}_se"]] for n in ("tv", "both", "draft")]
    )
    np.testing.assert_allclose(ends, expected)


def test_a_gamma_that_never_loses_is_said_to(figures):
    figure = failure_plots.fixed_gamma(failure_plots.fixed_gamma_data(PAIR, 0.8, 4, [1, 8]), 4)
    assert "γ = 4 loses at none of these batches" in figure.axes[0].get_title("left")


def test_the_best_gamma_is_the_rooflines():
    data = failure_plots.fixed_gamma_data(PAIR, 0.8, 4, BATCHES)
    for row in data.itertuples():
        gamma, speedup = PAIR.best_gamma(0.8, row.batch)
        assert (row.gamma, row.best) == (gamma, speedup)
        assert row.fixed == PAIR.speedup(0.8, row.batch, 4)
    assert (data["best"] >= np.maximum(data["fixed"], 1)).all()


def test_lines_have_their_data_and_units_and_differ_in_greyscale(figures):
    for name, figure in figures.items():
        axes = figure.axes[0]
        assert "(" in axes.get_xlabel() + axes.get_ylabel(), name
        lines = [line for line in axes.get_lines() if line.get_marker() in "osD"]
        looks = {(line.get_marker(), line.get_linestyle()) for line in lines}
        grey = [np.dot(to_rgb(line.get_color()), (0.299, 0.587, 0.114)) for line in lines]
        assert len(looks) == len(lines) >= 2
        assert np.diff(sorted(grey)).min() > 0.1, name
    drawn = {line.get_label(): line.get_ydata().tolist() for line in figures["forgotten"].axes[0].get_lines()}
    assert drawn["acceptance (both)"] == LEFT["both"].tolist()
    assert plt.get_fignums() == []
