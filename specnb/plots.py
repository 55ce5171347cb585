"""Pictures: tidy data in, one closed figure out, with a title that says what it shows.

Colours come from the Okabe-Ito palette and are told apart in greyscale and by hatching or marker, too. The
figures are closed, so that a notebook shows them once, as the value of the cell.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from specnb import laws
from specnb.errors import SpecnbError

BLUE, ORANGE, VERMILION, BLACK = "#0072B2", "#E69F00", "#D55E00", "#000000"
Z95 = 1.959963984540054
"""The 97.5 % quantile of the normal distribution, for 95 % intervals."""


def step_parts(p: Any, q: Any, labels: Sequence[str] | None = None) -> pd.DataFrame:
    """Return the masses of one position as tidy data: columns token, part, mass.

    p, q: rows [V]; labels: a text per token, all different; None shows ids. Parts: kept min(p, q), residual
    (p − q)+ and rejected (q − p)+.
    """
    p, q = _row("p", p), _row("q", q)
    if p.shape != q.shape:
        raise SpecnbError(f"p has {len(p)} entries and q has {len(q)}; expected one vocabulary")
    parts = {
        "kept": np.minimum(p, q),
        "residual": np.clip(p - q, 0, None),
        "rejected": np.clip(q - p, 0, None),
    }
    names = [str(v) for v in range(len(p))] if labels is None else list(labels)
    if len(names) != len(p) or len(set(names)) != len(names):
        raise SpecnbError(f"labels are {names}; expected {len(p)} different ones, one per token")
    return pd.DataFrame(
        [(name, part, mass) for part, masses in parts.items() for name, mass in zip(names, masses, strict=True)],
        columns=["token", "part", "mass"],
    )


def one_step(parts: pd.DataFrame) -> Figure:
    """Draw one position: what is kept of the draft, what is rejected, and what the correction adds.

    parts: as `step_parts` returns them.
    """
    table = parts.pivot(index="token", columns="part", values="mass").loc[parts["token"].unique()]
    kept, residual, rejected = (table[part].to_numpy() for part in ("kept", "residual", "rejected"))
    x, p = np.arange(len(table)), kept + residual
    figure, axes = _blank()
    axes.bar(x, kept, 0.62, color=BLUE, label="kept: min(p, q)")
    axes.bar(x, residual, 0.62, kept, color=ORANGE, edgecolor=BLACK, hatch="//", label="corrected: (p − q)₊")
    axes.bar(x, rejected, 0.62, kept, color="none", edgecolor=BLACK, ls="--", label="rejected: (q − p)₊ of q")
    axes.hlines(p, x - 0.4, x + 0.4, color=BLACK, lw=2.5, label="p, the target")
    axes.set_xticks(x, table.index)
    axes.set(xlabel="token", ylabel="probability", ylim=(0, 1.1 * (p + rejected).max()))
    sums = [f"{part.sum():.2f}" for part in (kept, residual, rejected)]
    axes.set_title("Kept {} + corrected {} = the target; rejected: {}".format(*sums), loc="left")
    figure.legend(ncols=4, loc="outside lower center")
    return _closed(figure)


def ceiling(data: pd.DataFrame) -> Figure:
    """Draw tokens per step against acceptance, one line per gamma, each below its ceiling γ + 1.

    data: tidy, columns gamma, alpha, tokens (emitted per step).
    """
    figure, axes = _blank()
    gammas = sorted(data["gamma"].unique())
    shades = dict(zip(gammas, sns.color_palette("viridis", len(gammas) + 1), strict=False))
    sns.lineplot(
        data=data, x="alpha", y="tokens", hue="gamma", style="gamma", palette=shades, markers=True,
        dashes=False, legend=False, ax=axes,
    )  # fmt: skip
    for gamma in gammas:
        axes.axhline(gamma + 1, color=shades[gamma], lw=1, ls=":")
        axes.annotate(f"γ = {gamma}: at most {gamma + 1}", (1.01, gamma + 1), va="center", annotation_clip=False)
    axes.set(xlabel="acceptance α (probability)", ylabel="mean tokens per target pass", xlim=(0, 1), ylim=(0.8, None))
    axes.set_title("Mean tokens per step reach the ceiling γ + 1 only as α → 1", loc="left")
    return _closed(figure)


def wilson(successes: Any, trials: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return the ends of the 95 % Wilson intervals of proportions (Wilson 1927); NaN where nothing was tried.

    successes, trials: counts of shapes that broadcast, 0 <= successes <= trials.

    >>> [round(float(end), 3) for end in wilson(8, 10)]
    [0.49, 0.943]
    """
    n, k = np.asarray(trials, float), np.asarray(successes, float)
    if not ((k >= 0) & (k <= n)).all():
        raise SpecnbError(f"successes are {k.tolist()} of {n.tolist()}; expected 0 <= successes <= trials")
    n = np.where(n > 0, n, np.nan)
    share = k / n
    centre = (share + Z95**2 / (2 * n)) / (1 + Z95**2 / n)
    half = Z95 * np.sqrt(share * (1 - share) / n + Z95**2 / (4 * n**2)) / (1 + Z95**2 / n)
    return centre - half, centre + half


def acceptance_by_position(data: pd.DataFrame) -> Figure:
    """Draw measured acceptance with 95 % intervals beside the exact 1 − TV, position by position.

    data: one row per position, columns position (from 1), accepted and reached (counts), exact (the mean of
    1 − TV over the reached rows).
    """
    low, high = wilson(data["accepted"], data["reached"])
    share = data["accepted"] / data["reached"]
    inside = int(((low <= data["exact"]) & (data["exact"] <= high)).sum())
    figure, axes = _blank()
    axes.errorbar(
        data["position"], share, [share - low, high - share],
        fmt="o", color=BLUE, capsize=4, label="measured, 95 % Wilson interval",
    )  # fmt: skip
    axes.scatter(
        data["position"],
        data["exact"],
        marker="_",
        s=500,
        color=VERMILION,
        lw=2.5,
        label="exact: mean 1 − TV of the judged rows",
    )
    axes.set_xticks(data["position"])
    axes.set(xlabel="position in the draft", ylabel="acceptance (probability)", ylim=(0, 1))
    axes.set_title(f"The exact 1 − TV lies in {inside} of {len(data)} intervals", loc="left")
    axes.legend(loc="lower left")
    return _closed(figure)


def ceiling_data(p: Any, q: Any, gammas: Sequence[int], mixtures: Sequence[float]) -> pd.DataFrame:
    """Return exact emitted tokens per step as the draft improves from q (mixture 0) to p (mixture 1)."""
    p, q = np.asarray(p, float), np.asarray(q, float)
    drafts = [(1 - share) * q + share * p for share in mixtures]
    return pd.DataFrame(
        [
            (
                gamma,
                1 - laws.total_variation(p, draft),
                1 + laws.expected_accepted("token", p=p, q=draft, gamma=gamma),
            )
            for gamma in gammas
            for draft in drafts
        ],
        columns=["gamma", "alpha", "tokens"],
    )


def _row(name: str, values: Any) -> np.ndarray:
    try:
        row = np.asarray(values, float)
    except (TypeError, ValueError) as error:
        raise SpecnbError(f"{name} is {values!r} ({error}); expected a row [V] of numbers") from None
    if row.ndim != 1:
        raise SpecnbError(f"{name} has shape {row.shape}; expected one row [V]")
    return row


def _blank() -> tuple[Figure, Axes]:
    """Return an empty figure that looks the same whatever the user's own style."""
    figure, axes = plt.subplots(figsize=(7, 3.6), dpi=110, layout="constrained")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="#e6e6e6")
    axes.set_axisbelow(True)
    return figure, axes


def _closed(figure: Figure) -> Figure:
    plt.close(figure)
    return figure
