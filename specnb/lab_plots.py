"""The pictures of `specnb.lab`, each a function of its setting alone, as closed figures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from specnb import roofline_plots
from specnb.plots import BLACK, BLUE, VERMILION, closed

if TYPE_CHECKING:
    from specnb.lab import Setting

BATCHES = [2**k for k in range(10)]
"""The batches that a chip's speedup is drawn for."""


def page(setting: Setting) -> Figure:
    """Draw speedup and tokens per step by γ; on a chip also the roofline, and the best speedup by batch."""
    rows = 1 if setting.on is None else 2
    # Margins by number, in inches: sliders are waiting, and a layout engine draws everything twice.
    figure, axes = plt.subplots(rows, 2, figsize=(9, 3.4 * rows), dpi=100, layout="none", squeeze=False)
    figure.subplots_adjust(0.07, 0.5 / (3.4 * rows), 0.99, 1 - 0.3 / (3.4 * rows), wspace=0.17, hspace=0.32)
    for each in axes.flat:
        each.spines[["top", "right"]].set_visible(False)
        each.grid(color="#e6e6e6")
        each.set_axisbelow(True)
    _speedups(axes[0, 0], setting)
    _tokens(axes[0, 1], setting)
    if setting.on is not None:
        _roof(axes[1, 0], setting)
        _batches(axes[1, 1], setting)
    return closed(figure)


def _speedups(axes: Axes, setting: Setting) -> None:
    gammas, best = setting.gammas, setting.best
    values = [setting.speedup(gamma) for gamma in gammas.tolist()]
    axes.plot(gammas, values, "o-", color=BLUE, ms=4)
    axes.plot(best, values[best], "o", mfc="none", mec=BLACK, ms=13, label=f"best: γ = {best}")
    axes.plot(setting.gamma, setting.speedup(), "D", color=VERMILION, mec=BLACK, ms=8, label=f"γ = {setting.gamma}")
    axes.axhline(1, color=BLACK, lw=1, ls=":", label="plain decoding")
    _by_gamma(axes, f"speedup at batch {setting.batch}", max(1.2, *values))
    others = "" if setting.gamma == best else f"; γ = {best}: {values[best]:.2f}"
    axes.set_title(f"γ = {setting.gamma}: speedup {setting.speedup():.2f}{others}, the best", loc="left")
    axes.legend(loc="lower right")


def _tokens(axes: Axes, setting: Setting) -> None:
    gammas = setting.gammas
    values = [setting.tokens(gamma) for gamma in gammas.tolist()]
    axes.plot(gammas, gammas + 1, ls="--", color=BLACK, lw=1, label="ceiling γ + 1")
    axes.plot(gammas, values, "o-", color=BLUE, ms=4, label="expected")
    axes.plot(setting.gamma, setting.tokens(), "D", color=VERMILION, mec=BLACK, ms=8, label=f"γ = {setting.gamma}")
    _by_gamma(axes, "tokens per step", max(2.0, 1.6 * max(values)))
    axes.set_title(f"{setting.tokens():.2f} tokens per step, of at most {setting.gamma + 1}", loc="left")
    axes.legend(loc="lower right")


def _by_gamma(axes: Axes, ylabel: str, top: float) -> None:
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set(xlabel="drafts per step γ (tokens)", ylabel=ylabel, ylim=(0, 1.1 * top))


def _roof(axes: Axes, setting: Setting) -> None:
    on: Any = setting.on
    gammas = sorted({0, setting.gamma})
    data = roofline_plots.roof_data(on.chip, on.target, gammas, [setting.batch], on.context)
    roofline_plots.roof_on(axes, on.chip, data)
    side = "below" if data["intensity"].max() < on.chip.ridge() else "beyond"
    axes.set_title(f"v = {setting.costs()[1]:.2f}: a verification lies {side} the ridge", loc="left")


def _batches(axes: Axes, setting: Setting) -> None:
    gammas, speedups = setting.best_by_batch(BATCHES)
    axes.plot(BATCHES, speedups, "-", color=BLUE)
    circle = {"boxstyle": "circle,pad=0.2", "fc": "white", "ec": BLUE}
    for gamma, batch, speedup in zip(gammas, BATCHES, speedups, strict=True):
        axes.annotate(f"{gamma}", (batch, speedup), ha="center", va="center", fontsize=8, bbox=circle)
    axes.axvline(setting.batch, color=VERMILION, lw=2, zorder=1)
    axes.axhline(1, color=BLACK, lw=1, ls=":")
    axes.set_xscale("log", base=2)
    axes.set_xticks(BATCHES[::2], [str(batch) for batch in BATCHES[::2]])
    axes.set(xlabel="batch (requests decoded together)", ylabel="predicted speedup", ylim=(0, 1.1 * speedups.max()))
    ends = f"{gammas[0]} at batch {BATCHES[0]}, {gammas[-1]} at {BATCHES[-1]}"
    axes.set_title(f"The best γ (in circles): {ends}", loc="left")
