"""The lab's controls: each change makes a new `specnb.lab.Setting`, and the picture is drawn from that alone."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import ipywidgets as widgets
import numpy as np

from specnb import lab_plots
from specnb.roofline import Chip, ModelShape, Speculation

if TYPE_CHECKING:
    from specnb.lab import Setting

BY_HAND = "c and v by hand"
CONTEXTS = [512, 1024, 2048, 4096, 8192, 16384, 32768]
TARGET, DRAFT = "Llama-3.1-8B", "Llama-3.2-1B"
"""The models that the lab begins with, unless its setting has others."""
YOURS = "as given"
"""A model whose shape doesn't travel with the package."""


class Sliders(widgets.VBox):
    """The lab as a widget. `setting` is what its controls say now; `controls` has them by name."""

    def __init__(self, setting: Setting) -> None:
        self.setting = self._given = setting
        self.controls = _controls(setting)
        self.line = widgets.HTML()
        self.picture = widgets.Image(format="png", layout={"max_width": "100%", "align_self": "flex-start"})
        columns = [["alpha", "gamma", "c", "v"], ["costs", "target", "draft", "batch", "context"]]
        rows = widgets.HBox([widgets.VBox([self.controls[name] for name in names]) for names in columns])
        super().__init__([rows, self.line, self.picture])
        self._redraw()
        for control in self.controls.values():
            control.observe(self._redraw, "value")

    def _redraw(self, change: Any = None) -> None:
        """Read the controls, and show their setting's line and picture."""
        value = {name: control.value for name, control in self.controls.items()}
        by_hand, given = value["costs"] == BY_HAND, self._given
        if by_hand and value["batch"] != given.batch:
            self.controls["batch"].value = given.batch  # what c and v by hand are of; this redraws
            return
        for name in ("c", "v"):
            self.controls[name].disabled = not by_hand or bool(np.ndim(getattr(given, name)))
        for name in ("target", "draft", "batch", "context"):
            self.controls[name].disabled = by_hand
        self.setting = type(given)(
            alpha=value["alpha"] if np.ndim(given.alpha) == 0 else given.alpha,
            gamma=value["gamma"],
            c=value["c"],
            v=value["v"] if np.ndim(given.v) == 0 else given.v,
            on=None if by_hand else self._place(value),
            batch=given.batch if by_hand else value["batch"],
        )
        self.line.value = self.setting.summary()
        self.picture.value = png(self.setting)

    def _place(self, value: dict[str, Any]) -> Speculation:
        given = self._given.on
        chip = given.chip if given is not None and value["costs"] == given.chip.name else Chip.named(value["costs"])
        kinds = ("target", "draft")
        shapes = [getattr(given, k) if value[k] == YOURS else ModelShape.named(value[k]) for k in kinds]
        return Speculation(chip, *shapes, context=value["context"])

    def _repr_mimebundle_(self, **options: Any) -> Any:
        """Return the widget, and the picture for where no kernel runs."""
        bundle = super()._repr_mimebundle_(**options)
        return bundle and bundle | {"image/png": base64.b64encode(self.picture.value).decode()}

    def __repr__(self) -> str:
        return f"lab.sliders({self.setting.summary()})"


def png(setting: Setting) -> bytes:
    """Return the picture of a setting as the bytes of a PNG file."""
    file = io.BytesIO()
    lab_plots.page(setting).savefig(file, format="png")
    return file.getvalue()


def _controls(setting: Setting) -> dict[str, Any]:
    """Return the controls by name; what was measured by position or by γ is shown and can't be moved."""
    on = setting.on
    chips = [chip.name for chip in Chip.all()]
    own = [on.chip.name] if on is not None and on.chip.name not in chips else []
    places = [BY_HAND, *own, *chips]
    target, draft = (TARGET, DRAFT) if on is None else (_name_of(shape) for shape in (on.target, on.draft))
    shapes = [*dict.fromkeys([*ModelShape.names(), target, draft])]
    contexts = sorted({*CONTEXTS, 1024 if on is None else int(on.context)})
    batches = sorted({*lab_plots.BATCHES, setting.batch})
    return {
        "alpha": _number("α, acceptance", setting.alpha, 0, 1, 0.01),
        "gamma": _labelled(widgets.IntSlider(setting.gamma, 0, setting.most), "γ, drafts"),
        "c": _number("c by hand", setting.c, 0, 1, 0.005),
        "v": _number("v by hand", setting.v, 1, 6, 0.05),
        "costs": _choice("costs", places, on.chip.name if on is not None else BY_HAND),
        "target": _choice("target", shapes, target),
        "draft": _choice("draft", shapes, draft),
        "batch": _slide("batch", batches, setting.batch),
        "context": _slide("context", contexts, 1024 if on is None else int(on.context)),
    }


def _name_of(shape: ModelShape) -> str:
    return next((name for name in ModelShape.names() if ModelShape.named(name) == shape), YOURS)


def _number(name: str, value: Any, low: float, high: float, step: float) -> Any:
    fixed, shown = bool(np.ndim(value)), float(np.mean(value))
    slider = widgets.FloatSlider(shown, min=min(low, shown), max=max(high, shown), step=step, readout_format=".3f")
    slider.disabled = fixed
    return _labelled(slider, f"{name} (measured)" if fixed else name)


def _choice(name: str, options: list[str], value: str) -> Any:
    return _labelled(widgets.Dropdown(options=options, value=value), name)


def _slide(name: str, options: Sequence[int], value: int) -> Any:
    return _labelled(widgets.SelectionSlider(options=options, value=value), name)


def _labelled(control: Any, name: str) -> Any:
    control.description = name
    control.style.description_width = "9em"
    control.layout.width = "26em"
    return control
