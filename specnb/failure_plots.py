"""Pictures of what breaks and what it costs: tidy data in, one closed figure out, as in `specnb.plots`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from specnb import plots
from specnb.roofline import Speculation

LOOKS: tuple[dict[str, Any], ...] = (
    {"color": plots.BLUE, "marker": "o", "ls": "-"},
    {"color": plots.ORANGE, "marker": "s", "ls": "--"},
    {"color": plots.VERMILION, "marker": "D", "ls": "-."},
)
"""Of up to three lines, told apart by marker and dashes, too."""


def temperatures(data: pd.DataFrame) -> Figure:
    """Draw acceptance against the target's temperature, one line per way to draft.

    data: tidy, columns way, temperature, alpha.
    """
    figure, axes = plots.blank()
    _lines(axes, data, "way", "temperature", "alpha")
    axes.legend(loc="lower left", frameon=False)
    hottest = data["temperature"].max()
    last = data.loc[data["temperature"] == hottest, ["way", "alpha"]]
    ends = "; ".join(f"{way}, {alpha:.2f}" for way, alpha in last.itertuples(index=False))
    axes.set(xlabel="temperature T of the target", ylabel="acceptance (probability)", ylim=(0, 1))
    axes.set_title(f"Accepted at T = {hottest:g}: {ends}", loc="left")
    return plots.closed(figure)


def forgotten(data: pd.DataFrame) -> Figure:
    """Draw what a cache costs that keeps rejected drafts: the error of the law, and what acceptance shows of it.

    data: a line per number of drafts left behind, from 0 on; columns left, tv (of the target's next law from what it
    should be), draft and both (acceptance where the draft alone forgot, and where both did); and of each its standard
    error, drawn as a bar to either side: tv_se, draft_se, both_se.
    """
    names = {"tv": "error of the law (target forgot)", "both": "acceptance (both)", "draft": "acceptance (draft alone)"}
    tidy = data.melt("left", list(names), "quantity").replace({"quantity": names})
    figure, axes = plots.blank()
    _lines(axes, tidy, "quantity", "left", "value")
    for name, look in zip(names, LOOKS, strict=True):
        axes.errorbar(data["left"], data[name], data[f"{name}_se"], fmt="none", ecolor=look["color"], capsize=3)
    figure.legend(ncols=3, loc="outside lower center", frameon=False)
    first, last = data.iloc[data["left"].argmin()], data.iloc[data["left"].argmax()]
    axes.set_xticks(data["left"])
    axes.set(xlabel="rejected drafts left in the cache (tokens)", ylabel="probability", ylim=(0, 1))
    axes.set_title(
        f"{last['left']:.0f} left: the law is off by {last['tv']:.2f}, and acceptance goes from {first['both']:.2f} to "
        f"{last['both']:.2f}",
        loc="left",
    )
    return plots.closed(figure)


def fixed_gamma_data(
    speculation: Speculation, alpha: float, gamma: int, batches: Sequence[int], max_gamma: int = 16
) -> pd.DataFrame:
    """Return predicted speedups by batch, of a fixed γ and of the best one: columns batch, fixed, gamma, best.

    gamma: the best one at that batch, from 0 to max_gamma.
    """
    rows = []
    for batch in batches:
        best, speedup = speculation.best_gamma(alpha, batch, max_gamma)
        rows.append((batch, float(speculation.speedup(alpha, batch, gamma)), int(best), float(speedup)))
    return pd.DataFrame(rows, columns=["batch", "fixed", "gamma", "best"])


def fixed_gamma(data: pd.DataFrame, gamma: int) -> Figure:
    """Draw predicted speedups over the batch, of a fixed γ and of the best one, whose γ stand at its points.

    data: as `fixed_gamma_data` returns it. gamma: the fixed one.
    """
    names = {"fixed": f"γ = {gamma} at every batch", "best": "the best γ (numbers)"}
    tidy = data.melt("batch", list(names), "way", "speedup").replace({"way": names})
    figure, axes = plots.blank()
    _lines(axes, tidy, "way", "batch", "speedup")
    axes.legend(loc="center left", frameon=False)
    for batch, best, speedup in data[["batch", "gamma", "best"]].itertuples(index=False):
        axes.annotate(f"{best}", (batch, speedup), (0, 6), textcoords="offset points", ha="center")
    axes.axhline(1, color=plots.BLACK, lw=1, ls=":")
    axes.set_xscale("log", base=2)
    axes.set_xticks(data["batch"], [str(batch) for batch in data["batch"]])
    axes.set(
        xlabel="batch (requests decoded together)", ylabel="predicted speedup", ylim=(None, 1.07 * data["best"].max())
    )
    loses = data.loc[data["fixed"] < 1, "batch"]
    says = f"loses from batch {loses.min()} on" if len(loses) else "loses at none of these batches"
    axes.set_title(f"Predicted: γ = {gamma} {says}; the best γ stays at {data['best'].min():.2f} or above", loc="left")
    return plots.closed(figure)


def _lines(axes: Axes, data: pd.DataFrame, by: str, x: str, y: str) -> None:
    """Draw one line per value of a column, in the order in which they come."""
    names: Iterable[str] = data[by].unique()
    for name, look in zip(names, LOOKS, strict=False):
        line = data[data[by] == name]
        axes.plot(line[x], line[y], mec=plots.BLACK, label=name, **look)
