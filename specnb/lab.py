"""The lab: sliders for α, γ, c, v, or for a chip, two models and a batch, and the speedup that follows.

`sliders` is for JupyterLab, and redraws as they move. `still` is the same picture for given values: for a page that
nobody can move, a paper or a PDF. All numbers are those of `specnb.theory` and `specnb.roofline`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from specnb import theory
from specnb.arrays import is_torch, to_numpy
from specnb.errors import SpecnbError
from specnb.roofline import Speculation
from specnb.theory.inputs import cost, positive_cost, probability

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
    on: a chip with two models, whose predictions at `batch` take the place of c and v. batch: requests, at least 1.
    Numbers are kept as floats and sequences as tuples, whatever they came as; what is none raises `SpecnbError`.

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
        for name, read in (("alpha", probability), ("c", cost), ("v", positive_cost)):
            object.__setattr__(self, name, _numbers(name, getattr(self, name), read, sequence=name != "c"))
        if self.on is not None and (not isinstance(self.on, Speculation) or np.ndim(self.on.context)):
            raise SpecnbError(f"on is a {type(self.on).__name__}; expected a roofline.Speculation with one context")
        for name in ("batch", "gamma"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
                raise SpecnbError(f"{name} is {value!r}; expected an integer")
        if self.batch < 1:
            raise SpecnbError(f"batch is {self.batch}; expected at least 1 request")
        if not 0 <= self.gamma <= self.most:
            raise SpecnbError(f"gamma is {self.gamma!r}; expected 0 to {self.most}, for which α and v are known")
        self.speedup()  # or raise what is wrong with the chip's models

    @classmethod
    def of(cls, found: Measurement) -> Setting:
        """Return the setting that was measured: α by position, c, and v by γ, linearly between those timed."""
        if not hasattr(found, "acceptance"):
            raise SpecnbError(f"a {type(found).__name__} was given; expected a Measurement by specnb.measure.speed")
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
        return float(self._speedup(gamma, *self.costs(gamma)))

    def best_by_batch(self, batches: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """Return the best γ shown and its speedup at each of these batches, of a setting on a chip."""
        if self.on is None:
            raise SpecnbError("c and v are by hand, for one batch; expected a setting on a chip")
        at, drafting = np.asarray(batches), self.on.draft_cost(np.asarray(batches))
        gammas = self.gammas.tolist()
        speedups = [self._speedup(gamma, drafting, self.on.verification_cost(at, gamma)) for gamma in gammas]
        return np.argmax(speedups, 0), np.max(speedups, 0)

    @property
    def best(self) -> int:
        """The γ shown with the largest speedup; 0 if no draft pays."""
        return int(np.argmax([self.speedup(gamma) for gamma in self.gammas.tolist()]))

    def _speedup(self, gamma: int, c: Any, v: Any) -> Any:
        if np.ndim(self.alpha) == 0:
            return theory.speedup(self.alpha, gamma, c, v)
        return theory.speedup(list(self.alpha)[:gamma], None, c, v)

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

    return lab_plots.page(_setting(setting))


def sliders(setting: Setting | None = None) -> Any:
    """Return the lab as a widget that begins with a setting; without a kernel a notebook shows the still picture.

    α, γ, c and v by hand, or a chip, two models, a batch and a context, whose roofline then gives c and v. What was
    measured by position or by γ stays as it is.

    Raises
    ------
    SpecnbError : ipywidgets isn't installed, or this is no setting.

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
    return Sliders(_setting(setting))


def _setting(setting: Any) -> Setting:
    if setting is not None and not isinstance(setting, Setting):
        raise SpecnbError(f"setting is {setting!r}; expected a lab.Setting, such as Setting(alpha=0.8, gamma=4)")
    return setting or Setting()


def _numbers(name: str, value: Any, read: Callable[[str, Any], Any], sequence: bool) -> Any:
    """Return a number as a float, a sequence of them as a tuple; whatever array or exact number it came as."""
    expected = "one number or a sequence of them, not empty" if sequence else "one number"
    try:
        numbers = np.asarray(read(name, to_numpy(value) if is_torch(value) else value), float)
    except TypeError:  # a symbol
        raise SpecnbError(f"{name} is {value!r}; expected {expected}") from None
    if numbers.ndim > sequence or not numbers.size:
        raise SpecnbError(f"{name} is {value!r}; expected {expected}")
    return tuple(numbers.tolist()) if numbers.ndim else float(numbers)
