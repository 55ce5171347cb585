"""Curves of the speed algebra: tidy data in, one closed figure out, lines told apart in greyscale by their markers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from specnb.errors import SpecnbError
from specnb.plots import BLACK

MARKERS = "os^Dv*"
MARKED = 8
"""About how many points of a line carry its marker."""


def table(function: Callable[..., Any], **columns: Sequence[float]) -> pd.DataFrame:
    """Return a function's values as tidy data: a row for each combination of its arguments, and a column `value`.

    >>> table(lambda a, b: a * b, a=[1, 2], b=[5]).to_numpy().tolist()
    [[1, 5, 5], [2, 5, 10]]
    """
    data = pd.MultiIndex.from_product(list(columns.values()), names=list(columns)).to_frame(index=False)
    return data.assign(value=function(**{name: data[name].to_numpy() for name in columns}))


def curves(
    panels: dict[str, pd.DataFrame],
    *,
    x: str,
    by: str,
    title: str,
    labels: tuple[str, str],
    level: tuple[float, str] | None = None,
    best: bool = False,
    shared: bool = False,
) -> Figure:
    """Draw `value` against x, a line for each value of `by`, in one panel per table that share the first's legend.

    Parameters
    ----------
    panels : tables as `table` returns them, by the label of their y axis.
    x, by : columns. labels: the label of the x axis, and what a line is called: "α = {}".
    level : a horizontal line and its name. best: ring the largest value of each line.
    shared : the panels have one scale, so that their heights compare.

    Raises `SpecnbError` for a table without these columns.
    """
    for data in panels.values():
        if missing := {x, by, "value"} - set(data):
            raise SpecnbError(f"the data has no column {', '.join(sorted(missing))}; it has {', '.join(data)}")
    look: Any = {"figsize": (7, 3.6), "dpi": 110, "layout": "constrained", "squeeze": False}
    figure, axes = plt.subplots(1, len(panels), sharey=shared, **look)
    for each, (ylabel, data) in zip(axes[0], panels.items(), strict=True):
        _lines(each, data, x, by, labels[1], best)
        each.set(xlabel=labels[0], ylabel=ylabel)
        each.tick_params(labelleft=True)
        each.xaxis.set_major_locator(MaxNLocator("auto", steps=[1, 2, 5, 10], integer=data[x].dtype.kind == "i"))
        if level:
            each.axhline(level[0], color=BLACK, lw=1, ls=":", label=level[1])
    handles, names = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, names, ncols=len(names), loc="outside lower center", frameon=False)
    figure.suptitle(title, x=0.01, ha="left", fontsize=11)
    plt.close(figure)
    return figure


def _lines(axes: Axes, data: pd.DataFrame, x: str, by: str, name: str, best: bool) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="#e6e6e6")
    groups = list(data.groupby(by, sort=False))
    shades = sns.color_palette("viridis", len(groups) + 1)
    for (key, line), color, marker in zip(groups, shades, MARKERS, strict=False):
        every = max(1, len(line) // MARKED)
        axes.plot(line[x], line["value"], color=color, marker=marker, ms=5, markevery=every, label=name.format(key))
        if best:
            top = line.loc[line["value"].idxmax()]
            axes.plot(top[x], top["value"], "o", mfc="none", mec=BLACK, ms=12)
