"""Pictures of predictions by `specnb.roofline`: tidy data in, one closed figure out, as in `specnb.plots`."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from specnb import plots
from specnb.roofline import Chip, ModelShape, Speculation

DASHES = ["-", "--", "-.", ":"]


def roof_data(
    chip: Chip, target: ModelShape, gammas: Sequence[int], batches: Sequence[int], context: int = 1024
) -> pd.DataFrame:
    """Return where forwards of γ + 1 tokens lie: columns gamma, batch, intensity (FLOP/byte), rate (FLOP/s).

    The types are bfloat16. rate: predicted, all operations over the predicted time.
    """
    rows = []
    for gamma in gammas:
        for batch in batches:
            forward = target.forward(batch, gamma + 1, context)
            rows.append((gamma, batch, forward.total.intensity, forward.total.flops / chip.seconds(forward)))
    return pd.DataFrame(rows, columns=["gamma", "batch", "intensity", "rate"])


def roof(chip: Chip, data: pd.DataFrame) -> Figure:
    """Draw the roof of a chip in bfloat16, and below it decoding (γ = 0) and verification, batch by batch.

    data: as `roof_data` returns it.
    """
    figure, axes = plots.blank()
    roof_on(axes, chip, data)
    rate, batch = data.loc[data["intensity"].idxmin(), ["rate", "batch"]]
    share = 100 * rate / chip.peak()
    axes.set_title(f"Decoding at batch {batch:.0f} reaches {share:.2f} % of the {chip.name}'s peak", loc="left")
    return plots.closed(figure)


def roof_on(axes: Axes, chip: Chip, data: pd.DataFrame) -> None:
    """Draw on given axes what `roof` draws."""
    x = np.geomspace(0.5, 4 * chip.ridge(), 200)
    axes.plot(x, chip.attainable(x) / 1e12, color=plots.BLACK, lw=1.5)
    axes.axvline(chip.ridge(), color=plots.BLACK, lw=1, ls=":")
    axes.annotate(f"ridge: {chip.ridge():.0f}", (chip.ridge(), x[0] * chip.bandwidth / 1e12), (4, 0),
                  textcoords="offset points")  # fmt: skip
    looks = zip(("o", "^", "s", "D"), (plots.BLUE, plots.VERMILION, plots.ORANGE, "white"), strict=True)
    for (gamma, points), (marker, color) in zip(data.groupby("gamma"), looks, strict=False):
        look = {"marker": marker, "color": color, "edgecolor": plots.BLACK, "zorder": 3}
        rates = points["rate"] / 1e12
        axes.scatter(points["intensity"], rates, label=f"verification, γ = {gamma}" if gamma else "decoding", **look)
        for batch, x, y in zip(points["batch"], points["intensity"], rates, strict=True):
            axes.annotate(f"{batch}", (x, y), (5, -11), textcoords="offset points", fontsize=8)
    axes.set(xscale="log", yscale="log", xlabel="intensity (FLOP per byte)", ylabel="rate (TFLOP/s)")
    axes.legend(title="predicted; numbers: batch", loc="upper left", frameon=False)


def verification_cost_data(
    chip: Chip, target: ModelShape, gamma: int, batches: Sequence[int], contexts: Iterable[int]
) -> pd.DataFrame:
    """Return predicted v over batch, in bfloat16: columns gamma, context, batch, v."""
    rows = [
        (gamma, context, batch, float(chip.verification_cost(batch, gamma, target, context)))
        for context in contexts
        for batch in batches
    ]
    return pd.DataFrame(rows, columns=["gamma", "context", "batch", "v"])


def verification_cost(data: pd.DataFrame) -> Figure:
    """Draw predicted v over batch, one line per context, between 1 and γ + 1.

    data: as `verification_cost_data` returns it, of one gamma.
    """
    gamma, fewest, most = int(data["gamma"].max()), data["batch"].min(), data["batch"].max()
    first, last = (data.loc[data["batch"] == batch, "v"] for batch in (fewest, most))
    figure, axes = plots.blank()
    for (context, line), look in zip(data.groupby("context"), _looks(len(last)), strict=True):
        axes.plot(line["batch"], line["v"], **look)
        end = line.iloc[-1]
        axes.annotate(f"context {context:,}", (end["batch"], end["v"]), (8, 0), textcoords="offset points", va="center",
                      bbox={"fc": "white", "ec": "none", "pad": 1})  # fmt: skip
    for value in (1, gamma + 1):
        axes.axhline(value, color=plots.BLACK, lw=1, ls=":")
    _batches(axes, data["batch"])
    axes.set(ylabel="predicted v (plain forwards)", ylim=(0.8, gamma + 1.2))
    axes.set_title(
        f"A forward of {gamma + 1} tokens costs {first.max():.1f} plain ones at batch {fewest}, "
        f"{last.min():.1f} to {last.max():.1f} at {most}",
        loc="left",
    )
    return plots.closed(figure)


def speedup_data(
    speculation: Speculation, alphas: Iterable[float], batches: Sequence[int], contexts: Iterable[int]
) -> pd.DataFrame:
    """Return predicted speedups at the best γ: columns alpha, context, batch, gamma, speedup."""
    tables = []
    for context in contexts:
        for alpha in alphas:
            gamma, speedup = replace(speculation, context=context).best_gamma(alpha, np.asarray(batches))
            columns = {"alpha": alpha, "context": context, "batch": batches, "gamma": gamma, "speedup": speedup}
            tables.append(pd.DataFrame(columns))
    return pd.concat(tables, ignore_index=True)


def best_speedup(data: pd.DataFrame) -> Figure:
    """Draw the predicted speedup over batch, one line per α; the marker of a point is its best γ.

    data: as `speedup_data` returns it, of one context.
    """
    fewest, most = data["batch"].min(), data["batch"].max()
    first, last = (data.loc[data["batch"] == batch, "speedup"] for batch in (fewest, most))
    figure, axes = plots.blank()
    for (alpha, line), look in zip(data.groupby("alpha"), _looks(len(last)), strict=True):
        axes.plot(line["batch"], line["speedup"], **look)
        circle = {"boxstyle": "circle,pad=0.2", "fc": "white", "ec": look["color"]}
        for gamma, x, y in zip(line["gamma"], line["batch"], line["speedup"], strict=True):
            axes.annotate(f"{gamma}", (x, y), ha="center", va="center", fontsize=8, bbox=circle)
        start = line.iloc[0]
        axes.annotate(f"α = {alpha}", (start["batch"], start["speedup"]), (-12, 0), textcoords="offset points",
                      ha="right", va="center")  # fmt: skip
    axes.axhline(1, color=plots.BLACK, lw=1, ls=":")
    _batches(axes, data["batch"])
    axes.set(ylabel="predicted speedup", ylim=(0.8, None), xlim=(fewest / 2.6, most * 1.3))
    axes.set_title(
        f"Circles: the best γ. The best speedup falls from {first.max():.1f} at batch {fewest} "
        f"to {last.max():.1f} at {most}",
        loc="left",
    )
    return plots.closed(figure)


def latency(data: pd.DataFrame) -> Figure:
    """Draw the time of a batch's verdicts over the batch, one line per way.

    data: tidy, columns way, batch, microseconds: predictions all of them. The first way gives the title its numbers.
    """
    ways = list(data["way"].unique())
    times = data.pivot(index="batch", columns="way", values="microseconds").sort_index()
    figure, axes = plots.blank()
    for way, look, marker in zip(ways, _looks(len(ways)), itertools.cycle("os^Dv"), strict=False):
        axes.plot(times.index, times[way], marker=marker, mec=plots.BLACK, label=way, **look)
    _batches(axes, data["batch"])
    axes.set(yscale="log", ylabel="predicted time (µs)")
    axes.legend(loc="upper left", frameon=False)
    fewest, most = times.index.min(), times.index.max()
    least, longest = times.loc[fewest, ways[0]], times.loc[most, ways[0]]
    title = f"{ways[0]}: {least:.0f} µs at batch {fewest}, {longest:.0f} at {most}, predicted"
    axes.set_title(title, loc="left")
    return plots.closed(figure)


def _looks(count: int) -> list[dict[str, Any]]:
    """Return a look for each of a few lines, told apart in greyscale and by dashes."""
    colors = sns.color_palette("viridis", count + 1)[:count]
    return [{"color": color, "ls": DASHES[i % len(DASHES)]} for i, color in enumerate(colors)]


def _batches(axes: Any, batches: pd.Series) -> None:
    """Label a logarithmic axis with the batches themselves."""
    axes.set_xscale("log", base=2)
    ticks = sorted(batches.unique())
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.set_xlabel("batch (requests decoded together)")
