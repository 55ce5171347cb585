"""One page of a measurement by `specnb.measure.speed`, as one closed figure."""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from specnb.errors import SpecnbError
from specnb.measure import Acceptance, Measurement
from specnb.plots import BLACK, BLUE, ORANGE, VERMILION, closed

PARTS = {"drafting": (BLUE, "//"), "forwards": ("#9ecae1", ""), "the loop": (ORANGE, "..")}
"""The parts of a round, each with its colour and hatch."""


def page(found: Measurement) -> Figure:
    """Draw a measurement: acceptance by position and by request, a round's time by its parts, and every stage.

    Raises `SpecnbError` if it was interrupted before its first repeat was complete.
    """
    if not found.repeats:
        raise SpecnbError("the measurement has no complete repeat; expected at least one: was it interrupted?")
    figure = plt.figure(figsize=(7.5, 9), dpi=110, layout="constrained")
    rows: Any = figure.subfigures(3, 1, height_ratios=(3, 1.7, 3))
    (left, right), middle, last = rows[0].subplots(1, 2), rows[1].subplots(), rows[2].subplots()
    for each in (left, right, middle, last):
        each.spines[["top", "right"]].set_visible(False)
        each.grid(color="#e6e6e6")
        each.set_axisbelow(True)
    _positions(left, found.acceptance)
    _requests(right, found.acceptance)
    _round(middle, found)
    _stages(last, found)
    figure.suptitle(
        f"Predicted speedup {found.predicted:.2f}, achieved {found.achieved:.2f} "
        f"(batch {found.batch}, γ = {found.gamma}, rule {found.acceptance.rule})",
        x=0.01, ha="left",
    )  # fmt: skip
    return closed(figure)


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
