"""The lab: sliders for α, γ, c, v, or for a chip, two models and a batch, and the speedup that follows.

`sliders` is for JupyterLab, and redraws as they move. `still` is the same picture for given values: for a page that
nobody can move, a paper or a PDF. All numbers are those of `specnb.theory` and `specnb.roofline`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from specnb import theory
from specnb.errors import SpecnbError
from specnb.roofline import Speculation

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from specnb.measure import Measurement

MOST = 16
"""The largest γ that the lab shows."""


@dataclass(frozen=True)
class Setting:
    """What the lab's controls hold.

    alpha: one acceptance in [0, 1], or a sequence of them by position, as measured; γ then ends with it.
    gamma: drafts per step. c, v: costs by hand, in plain target steps; v may be a sequence, of γ = 1, 2, … drafts.
    on: a chip with two models, whose predictions at `batch` take the place of c and v.

    >>> Setting(alpha=0.8, gamma=4, c=0.05).speedup()
    2.8013333333333335
    """

    alpha: Any = 0.8
    gamma: int = 4
    c: float = 0.05
    v: Any = 1.0
    on: Speculation | None = None
    batch: int = 1

    def __post_init__(self) -> None:
        if isinstance(self.gamma, bool) or not isinstance(self.gamma, (int, np.integer)):
            raise SpecnbError(f"gamma is {self.gamma!r}; expected an integer")
        if not 0 <= self.gamma <= self.most:
            raise SpecnbError(f"gamma is {self.gamma!r}; expected 0 to {self.most}, for which α and v are known")
        self.speedup()  # or raise what is wrong with the others

    @classmethod
    def of(cls, found: Measurement) -> Setting:
        """Return the setting that was measured: α by position, c, and v by γ, linearly between those timed."""
        gammas = np.arange(1, found.gamma + 1)
        known = {0: 1.0} | {gamma: found.costs.v(found.batch, gamma) for gamma in found.costs.gammas}
        v = np.interp(gammas, list(known), list(known.values()))
        return cls(tuple(found.acceptance.profile.tolist()), found.gamma, found.c, tuple(v.tolist()), batch=found.batch)

    @property
    def most(self) -> int:
        """The largest γ for which α and v are known, at most 16."""
        return min([MOST, *(len(values) for values in (self.alpha, self.v) if np.ndim(values))])

    @property
    def gammas(self) -> np.ndarray:
        """Every γ that the lab shows, from 0: plain decoding."""
        return np.arange(self.most + 1)

    def tokens(self, gamma: int | None = None) -> float:
        """Return the expected tokens per step, for the setting's γ or another one."""
        gamma = self.gamma if gamma is None else gamma
        if np.ndim(self.alpha) == 0:
            return theory.expected_tokens(self.alpha, gamma)
        return theory.expected_tokens(list(self.alpha)[:gamma])

    def costs(self, gamma: int | None = None) -> tuple[float, float]:
        """Return c and v, for the setting's γ or another one."""
        gamma = self.gamma if gamma is None else gamma
        if self.on is not None:
            return float(self.on.draft_cost(self.batch)), float(self.on.verification_cost(self.batch, gamma))
        if np.ndim(self.v) == 0:
            return self.c, float(self.v) if gamma else 1.0
        return self.c, ([1.0, *self.v][gamma])

    def speedup(self, gamma: int | None = None) -> float:
        """Return the speedup over plain decoding at the same batch, for the setting's γ or another one."""
        gamma = self.gamma if gamma is None else gamma
        alpha = self.alpha if np.ndim(self.alpha) == 0 else list(self.alpha)[:gamma]
        return float(theory.speedup(alpha, gamma if np.ndim(alpha) == 0 else None, *self.costs(gamma)))

    @property
    def best(self) -> int:
        """The γ shown with the largest speedup; 0 if no draft pays."""
        return int(np.argmax([self.speedup(gamma) for gamma in self.gammas.tolist()]))

    def summary(self) -> str:
        """Return the numbers at the setting's γ and at the best one, in a line."""
        (c, v), best = self.costs(), self.best
        place = f", {self.on.chip.name}" if self.on is not None else ""
        return (
            f"γ = {self.gamma}: {self.tokens():.2f} tokens per step, c = {c:.3f}, v = {v:.2f}, speedup "
            f"{self.speedup():.2f} at batch {self.batch}{place}; best γ = {best}: {self.speedup(best):.2f}"
        )


def still(setting: Setting | None = None) -> Figure:
    """Return the lab's picture for a setting: speedup and tokens per step by γ and, on a chip, the roofline."""
    from specnb import lab_plots

    return lab_plots.page(setting or Setting())


def sliders(setting: Setting | None = None) -> Any:
    """Return the lab as a widget that begins with a setting; without a kernel a notebook shows the still picture.

    α, γ, c and v by hand, or a chip, two models, a batch and a context, whose roofline then gives c and v. What was
    measured by position or by γ stays as it is.

    Raises
    ------
    SpecnbError : ipywidgets isn't installed.

    >>> from specnb.roofline import Chip, ModelShape
    >>> pair = Speculation(Chip.named("H100 SXM"), *map(ModelShape.named, ("Llama-3.1-8B", "Llama-3.2-1B")))
    >>> widget = sliders(Setting(alpha=0.8, gamma=4, on=pair))
    >>> widget.controls["batch"].value = 64
    >>> widget.setting.batch, round(widget.setting.speedup(), 2)
    (64, 1.82)
    """
    try:
        from specnb.lab_sliders import Sliders
    except ImportError as error:
        raise SpecnbError(f"{error.name} isn't installed: pip install 'specnb[notebooks]'") from None
    return Sliders(setting or Setting())
