"""Pictures: tidy data in, one closed figure out, with a title that says what it shows.

Colours come from the Okabe-Ito palette and are told apart in greyscale and by hatching or marker, too. The
figures are closed, so that a notebook shows them once, as the value of the cell.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from specnb import laws
from specnb.errors import SpecnbError
from specnb.rules import Rule

BLUE, ORANGE, VERMILION, BLACK = "#0072B2", "#E69F00", "#D55E00", "#000000"
Z95 = 1.959963984540054
"""The 97.5 % quantile of the normal distribution, for 95 % intervals."""
ON_THE_LINE = 1e-12
"""How near a point lies to a line that it is on: far above float64's rounding, far below what a picture shows."""


def step_parts(p: Any, q: Any, labels: Sequence[str] | None = None) -> pd.DataFrame:
    """Return the masses of one position as tidy data: columns token, part, mass.

    p, q: rows [V]; labels: a text per token, all different; None shows ids. Parts: kept min(p, q), residual
    (p − q)+ and rejected (q − p)+.
    """
    p, q, names = _pair(p, q, labels)
    parts = {
        "kept": np.minimum(p, q),
        "residual": np.clip(p - q, 0, None),
        "rejected": np.clip(q - p, 0, None),
    }
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
    figure, axes = blank()
    axes.bar(x, kept, 0.62, color=BLUE, label="kept: min(p, q)")
    axes.bar(x, residual, 0.62, kept, color=ORANGE, edgecolor=BLACK, hatch="//", label="corrected: (p − q)₊")
    axes.bar(x, rejected, 0.62, kept, color="none", edgecolor=BLACK, ls="--", label="rejected: (q − p)₊ of q")
    axes.hlines(p, x - 0.4, x + 0.4, color=BLACK, lw=2.5, label="p, the target")
    axes.set_xticks(x, table.index)
    axes.set(xlabel="token", ylabel="probability", ylim=(0, 1.1 * (p + rejected).max()))
    sums = [f"{part.sum():.2f}" for part in (kept, residual, rejected)]
    axes.set_title("Kept {} + corrected {} = the target; rejected: {}".format(*sums), loc="left")
    figure.legend(ncols=4, loc="outside lower center")
    return closed(figure)


def ceiling(data: pd.DataFrame) -> Figure:
    """Draw tokens per step against acceptance, one line per gamma, each below its ceiling γ + 1.

    data: tidy, columns gamma, alpha, tokens (emitted per step).
    """
    figure, axes = blank()
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
    return closed(figure)


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
    figure, axes = blank()
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
    return closed(figure)


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


def gain_data(p: Any, drafts: Mapping[str, Any], gammas: Sequence[int]) -> pd.DataFrame:
    """Return exact accepted drafts per step by the rules token and block: columns draft, gamma, token, block.

    p: a row [V] of the target; drafts: rows [V] by name, each the same at every position.
    """
    return pd.DataFrame(
        [
            (name, gamma, *(laws.expected_accepted(rule, p=p, q=q, gamma=gamma) for rule in ("token", "block")))
            for name, q in drafts.items()
            for gamma in gammas
        ],
        columns=["draft", "gamma", "token", "block"],
    )


def gain(data: pd.DataFrame) -> Figure:
    """Draw how many more drafts block accepts than token, against gamma, one line per draft.

    data: tidy, columns draft, gamma, token and block (both accepted per step, token's above 0).
    """
    data = data.assign(more=100 * (data["block"] / data["token"] - 1))
    ends = data.loc[data.groupby("draft", sort=False)["gamma"].idxmax()]
    figure, axes = blank()
    sns.lineplot(
        data=data, x="gamma", y="more", hue="draft", style="draft", markers=True, dashes=False, legend=False,
        palette=sns.color_palette("viridis", len(ends) + 1)[: len(ends)], ax=axes,
    )  # fmt: skip
    for end in ends.itertuples():
        axes.annotate(end.draft, (end.gamma, end.more), (8, 0), textcoords="offset points", va="center")
    axes.set_xticks(sorted(data["gamma"].unique()))
    axes.set(xlabel="drafts per step γ (tokens)", ylabel="gain in accepted drafts (%)")
    least, most = round(data["more"].min()), round(data["more"].max())
    axes.set_title(f"Block accepts {least} to {most} % more drafts than token", loc="left")
    return closed(figure)


def coupling_parts(p: Any, q: Any, labels: Sequence[str] | None = None) -> pd.DataFrame:
    """Return which uniforms pick which token: columns part, token, low, high.

    p, q, labels: as in `step_parts`. Parts: draft and target, the intervals of q and p in the tokens' order; both,
    where the two intervals of one token overlap, so that the rule `coupled` keeps it.
    """
    p, q, names = _pair(p, q, labels)
    low = np.maximum(q.cumsum() - q, p.cumsum() - p)
    both = low, np.maximum(low, np.minimum(q.cumsum(), p.cumsum()))
    ends = {"draft": (q.cumsum() - q, q.cumsum()), "both": both, "target": (p.cumsum() - p, p.cumsum())}
    return pd.DataFrame(
        [(part, *row) for part, (low, high) in ends.items() for row in zip(names, low, high, strict=True)],
        columns=["part", "token", "low", "high"],
    )


def coupling(parts: pd.DataFrame) -> Figure:
    """Draw the intervals of the draft above those of the target, and between them where they pick one token.

    parts: as `coupling_parts` returns them.
    """
    parts = parts.assign(width=parts["high"] - parts["low"])
    widths = parts.pivot(index="token", columns="part", values="width")
    looks = {"target": ("white", ""), "both": (BLUE, "//"), "draft": ("white", "")}
    figure, axes = blank()
    for height, (part, (color, hatch)) in enumerate(looks.items()):
        rows = parts[(parts["part"] == part) & (parts["width"] > 0)]
        bars = axes.barh(height, rows["width"], 0.8, rows["low"], color=color, edgecolor=BLACK, hatch=hatch)
        if part != "both":
            axes.bar_label(bars, rows["token"], label_type="center")
    axes.set_yticks(range(3), ["target: p", "same token", "draft: q"])
    axes.set(xlabel="uniform u, shared by draft and target (probability)", ylabel="interval of each token", xlim=(0, 1))
    same, most = widths["both"].sum(), widths[["draft", "target"]].min(axis=1).sum()
    axes.set_title(f"Draft and target agree for {same:.2f} of all u; 1 − TV is {most:.2f}", loc="left")
    return closed(figure)


def tradeoff_data(families: Mapping[str, Sequence[str | Rule]], p: Any, q: Any) -> pd.DataFrame:
    """Return what rules accept and how far they move the law: columns family, rule, alpha, tv, best.

    families: rules by the name of their family; p, q: rows [V]. alpha: the acceptance at one position. tv: the total
    variation of the token emitted there from p. best: 1 − TV(p, q) + tv, which no rule's alpha exceeds.
    """
    p, q, _ = _pair(p, q)
    most, data = 1 - laws.total_variation(p, q), []
    for family, rules in families.items():
        for rule in rules:
            tv = laws.total_variation(laws.joint_law(rule, p=p, q=q, gamma=1).sum(axis=1), p)
            alpha = laws.expected_accepted(rule, p=p, q=q, gamma=1)
            data.append((family, str(rule), alpha, tv, most + tv))
    return pd.DataFrame(data, columns=["family", "rule", "alpha", "tv", "best"])


def tradeoff(data: pd.DataFrame) -> Figure:
    """Draw acceptance against total variation, one marker per family, under the line that no rule exceeds.

    data: tidy, as `tradeoff_data` returns it.
    """
    most = (data["best"] - data["tv"]).iloc[0]
    below = (data["best"] - data["alpha"]).groupby(data["family"], sort=False).max() > ON_THE_LINE
    sides = {"On the line": below.index[~below], "below": below.index[below]}
    figure, axes = blank()
    axes.plot([0, 1 - most], [most, 1], color=BLACK, lw=1.5, label="no rule above α = 1 − TV(p, q) + ε", zorder=1)
    sns.scatterplot(
        data=data, x="tv", y="alpha", hue="family", style="family", s=70, edgecolor=BLACK,
        palette=sns.color_palette("viridis", len(below)), ax=axes,
    )  # fmt: skip
    axes.set(xlabel="total variation ε of the emitted token from p", ylabel="acceptance α (probability)")
    axes.set_title("; ".join(f"{side}: {', '.join(names)}" for side, names in sides.items() if len(names)), loc="left")
    sns.move_legend(axes, "lower right", title=None)
    return closed(figure)


def _pair(p: Any, q: Any, labels: Sequence[str] | None = None) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Return two rows of one vocabulary and a name for each of its tokens."""
    p, q = _row("p", p), _row("q", q)
    if p.shape != q.shape:
        raise SpecnbError(f"p has {len(p)} entries and q has {len(q)}; expected one vocabulary")
    names = [str(v) for v in range(len(p))] if labels is None else list(labels)
    if len(names) != len(p) or len(set(names)) != len(names):
        raise SpecnbError(f"labels are {names}; expected {len(p)} different ones, one per token")
    return p, q, names


def _row(name: str, values: Any) -> np.ndarray:
    try:
        row = np.asarray(values, float)
    except (TypeError, ValueError) as error:
        raise SpecnbError(f"{name} is {values!r} ({error}); expected a row [V] of numbers") from None
    if row.ndim != 1:
        raise SpecnbError(f"{name} has shape {row.shape}; expected one row [V]")
    return row


def blank() -> tuple[Figure, Axes]:
    """Return an empty figure that looks the same whatever the user's own style."""
    figure, axes = plt.subplots(figsize=(7, 3.6), dpi=110, layout="constrained")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="#e6e6e6")
    axes.set_axisbelow(True)
    return figure, axes


def closed(figure: Figure) -> Figure:
    """Return a figure that pyplot no longer shows by itself."""
    plt.close(figure)
    return figure
