"""Measurements by `specnb.measure` as closed figures: one on a page, drafters side by side, causes of a speedup."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from specnb.errors import SpecnbError
from specnb.measure import Acceptance, Measurement
from specnb.measure.reports import ACHIEVED, PREDICTED
from specnb.plots import BLACK, BLUE, ORANGE, VERMILION, closed

MARKS = (("o", BLUE), ("s", ORANGE), ("^", "#009E73"), ("D", VERMILION), ("v", "#CC79A7"), ("P", BLACK))
"""Marker and colour of each series; the marker alone tells them apart."""
PARTS = {"drafting": (BLUE, "//"), "forwards": ("#9ecae1", ""), "the loop": (ORANGE, "..")}
"""The parts of a round, each with its colour and hatch."""


def drafters(found: Mapping[str, Acceptance]) -> Figure:
    """Draw the acceptance of several drafters: by position with 95 % intervals and exact chances, and by request.

    found: up to six acceptances by the name of their drafter, of the same target.
    """
    if not 1 <= len(found) <= len(MARKS):
        raise SpecnbError(f"found has {len(found)} drafters; expected 1 … {len(MARKS)}")
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.8), dpi=110, layout="constrained")
    for at, (each, (marker, color)) in enumerate(zip(found.values(), MARKS, strict=False)):
        _marked(left, each, marker, color, (at - (len(found) - 1) / 2) * 0.12)
        shares = each.by_request[np.isfinite(each.by_request)]
        heights = -at + np.linspace(-0.25, 0.25, len(shares))
        right.plot(shares, heights, marker, color=color, mec="white", mew=0.5, ms=6)
        right.plot([each.pooled] * 2, [-at - 0.4, -at + 0.4], color=BLACK, lw=2)
    left.set_xticks(range(1, max(each.gamma for each in found.values()) + 1))
    left.set(xlabel="position in the draft", ylabel="acceptance (probability)", ylim=(0, 1.02))
    right.set_yticks([-at for at in range(len(found))], list(found))
    right.set(xlabel="acceptance of one request (probability)", xlim=(-0.03, 1.03))
    ordered = sorted(found, key=lambda name: -found[name].pooled)
    said = ", ".join(f"{name} {found[name].pooled:.2f}" for name in ordered)
    figure.suptitle(f"Accepted drafts: {said}", x=0.01, ha="left")
    return _plain(figure)


def causes(table: pd.DataFrame) -> Figure:
    """Draw how a speedup comes about, one line per batch: from the textbook's to the achieved one.

    table: the rows of `Measurement.explained()` for each batch, with a column batch, as `specnb bench speed` writes.
    """
    figure, axes = plt.subplots(figsize=(7.5, 3.8), dpi=110, layout="constrained")
    names = table["with"].unique().tolist()
    said = []
    for (batch, rows), (marker, color) in zip(table.groupby("batch"), MARKS, strict=False):
        speedup, y = rows["speedup"].to_numpy(), -np.arange(len(rows))
        errors = np.maximum([speedup - rows["low"], rows["high"] - speedup], 0)
        axes.errorbar(speedup, y, xerr=errors, fmt=f"{marker}-", color=color, capsize=3, lw=1, label=f"batch {batch}")
        for place in (PREDICTED, ACHIEVED):
            axes.plot(speedup[place], y[place], marker, color=color, ms=11, mec=BLACK, mew=1.5)
        said.append(f"{speedup[PREDICTED]:.2f} and {speedup[ACHIEVED]:.2f} at batch {batch}")
    shown = ["+ " * (at > 0) + name for at, name in enumerate(names)]
    shown[PREDICTED], shown[ACHIEVED] = f"{shown[PREDICTED]} = predicted", "achieved"
    axes.set_yticks(-np.arange(len(names)), shown)
    axes.axvline(1, color=BLACK, lw=1, ls=":")
    axes.set(xlabel="speedup over plain decoding (median; percentiles 20, 80)")
    axes.legend(loc="lower right", frameon=False)
    figure.suptitle(f"Predicted and achieved: {', '.join(said)}", x=0.01, ha="left")
    return _plain(figure)


def _plain(figure: Figure) -> Figure:
    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(color="#e6e6e6")
        axes.set_axisbelow(True)
    return closed(figure)


def _marked(axes: Axes, found: Acceptance, marker: str, color: str, shift: float) -> None:
    """Draw one drafter's acceptance by position, a little aside, with a dash at each exact mean chance."""
    x, alpha, (low, high) = np.arange(1, found.gamma + 1) + shift, found.alpha, found.interval()
    errors = [alpha - low, high - alpha]
    axes.errorbar(x, alpha, errors, fmt=marker, color=color, capsize=3, ms=6)
    axes.scatter(x, found.exact, marker="_", s=160, color=BLACK, lw=1.5, zorder=3)


def page(found: Measurement) -> Figure:
    """Draw a measurement: acceptance by position and by request, a round's time by its parts, and every stage.

    Raises `SpecnbError` if it was interrupted before its first repeat was complete.
    """
    if not found.repeats:
        raise SpecnbError("the measurement has no complete repeat; expected at least one: was it interrupted?")
    figure = plt.figure(figsize=(7.5, 9), dpi=110, layout="constrained")
    rows: Any = figure.subfigures(3, 1, height_ratios=(3, 1.7, 3))
    (left, right), middle, last = rows[0].subplots(1, 2), rows[1].subplots(), rows[2].subplots()
    _positions(left, found.acceptance)
    _requests(right, found.acceptance)
    _round(middle, found)
    _stages(last, found)
    figure.suptitle(
        f"Predicted speedup {found.predicted:.2f}, achieved {found.achieved:.2f} "
        f"(batch {found.batch}, γ = {found.gamma}, rule {found.acceptance.rule})",
        x=0.01, ha="left",
    )  # fmt: skip
    return _plain(figure)


def _positions(axes: Axes, found: Acceptance) -> None:
    x, alpha, (low, high) = np.arange(1, found.gamma + 1), found.alpha, found.interval()
    axes.errorbar(x, alpha, [alpha - low, high - alpha], fmt="o", color=BLUE, capsize=4, label="measured, 95 % Wilson")
    if found.overlap is not None:
        axes.scatter(x, found.exact, marker="_", s=500, color=VERMILION, lw=2.5, label="exact mean chance")
    axes.set_xticks(x)
    axes.set(xlabel="position in the draft", ylabel="acceptance (probability)", ylim=(0, 1.02))
    axes.set_title("How often is a draft accepted?", loc="left")
    axes.legend(loc="lower left", frameon=False)


def _requests(axes: Axes, found: Acceptance) -> None:
    shares = found.by_request[np.isfinite(found.by_request)]
    axes.hist(shares, bins=np.linspace(0, 1, 21).tolist(), color=BLUE, edgecolor="white")
    known = f"all: {found.pooled:.2f}\n(dispersion {found.dispersion:.1f})"
    axes.axvline(found.pooled, color=VERMILION, lw=2, label=known)
    axes.set(xlabel="acceptance (probability)", ylabel="requests", xlim=(0, 1))
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_title("Do requests differ?", loc="left")
    axes.legend(loc="upper left", frameon=False)


def _round(axes: Axes, found: Measurement) -> None:
    plain, speculative = found.overhead
    tokens = float(1 + found.acceptance.profile.cumprod().sum())
    bars = {
        "one round of drafts": {"drafting": found.gamma * found.c, "forwards": found.v, "the loop": speculative},
        f"{tokens:.2f} tokens, plainly": {"forwards": tokens, "the loop": tokens * plain},
    }
    for height, parts in enumerate(reversed(bars.values())):
        left = 0.0
        for name, width in parts.items():
            color, hatch = PARTS[name]
            label = name if height else None
            axes.barh(height, width, 0.6, left, color=color, hatch=hatch, edgecolor=BLACK, label=label)
            left += width
    axes.set_yticks(range(2), reversed(bars))
    axes.set(xlabel="time (bare target forwards)", ylim=(-0.5, 2.2))
    axes.set_title(f"What does a round cost? c = {found.c:.2f}, v = {found.v:.2f}", loc="left")
    axes.legend(ncols=3, loc="upper left", frameon=False)


def _stages(axes: Axes, found: Measurement) -> None:
    table = found.explained()
    names = table["with"].where(table.index == 0, "+ " + table["with"]).tolist()
    names[-1] = "achieved"
    y = -table.index.to_numpy()
    axes.plot(table["speedup"], y, color=BLACK, lw=1)
    errors = [table["speedup"] - table["low"], table["high"] - table["speedup"]]
    axes.errorbar(table["speedup"], y, np.maximum(errors, 0), fmt="o", color=BLUE, capsize=3)
    for value, height, marker in ((found.predicted, -4, "D"), (found.achieved, y[-1], "s")):
        axes.plot(value, height, marker, color=VERMILION, ms=8, mec=BLACK, zorder=3)
    axes.axvline(1, color=BLACK, lw=1, ls=":")
    names[4] += " = predicted"
    axes.set_yticks(y, names)
    axes.set(xlabel="speedup over plain decoding (median; percentiles 20, 80)")
    axes.set_title("Which cause takes what?", loc="left")
