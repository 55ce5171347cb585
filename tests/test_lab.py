"""The lab shows what theory and roofline say, whichever control moves, and its still picture is the same."""

from __future__ import annotations

import base64
from dataclasses import replace
from fractions import Fraction

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch

from specnb import lab, lab_plots, measure, theory
from specnb.errors import SpecnbError
from specnb.lab import Setting
from specnb.lab_sliders import png
from specnb.measure.loops import Loop
from specnb.measure.reports import Repeat
from specnb.roofline import Chip, ModelShape, Speculation

PAIR = Speculation(Chip.named("H100 SXM"), *map(ModelShape.named, ("Llama-3.1-8B", "Llama-3.2-1B")))
ON_CHIP = Setting(alpha=0.8, gamma=4, on=PAIR, batch=64)
MEASURED = Setting(alpha=(0.8, 0.7, 0.9), gamma=2, c=0.2, v=(1.1, 1.3, 1.4), batch=8)


def test_by_hand_it_is_the_theory():
    setting = Setting(alpha=0.8, gamma=4, c=0.05, v=3.5)
    assert setting.speedup() == theory.speedup(0.8, 4, 0.05, 3.5)
    assert setting.tokens() == theory.expected_tokens(0.8, 4)
    assert setting.speedup(0) == 1  # no drafts: plain decoding, whatever a verification costs
    assert Setting(alpha=0.8, c=0.05).best == theory.optimal_gamma(0.8, 0.05)


def test_on_a_chip_it_is_the_roofline():
    assert ON_CHIP.costs() == (PAIR.draft_cost(64), PAIR.verification_cost(64, 4))
    assert ON_CHIP.speedup() == pytest.approx(PAIR.speedup(0.8, 64, 4))
    assert (ON_CHIP.best, ON_CHIP.speedup(ON_CHIP.best)) == pytest.approx(PAIR.best_gamma(0.8, 64))


def test_as_measured_it_is_by_position_and_by_gamma():
    assert MEASURED.most == 3
    assert MEASURED.tokens() == pytest.approx(1 + 0.8 + 0.56)
    assert MEASURED.costs(3) == (0.2, 1.4)
    assert MEASURED.speedup() == pytest.approx((1 + 0.8 + 0.56) / (2 * 0.2 + 1.3))


def test_a_measurement_is_a_setting():
    found = measure.Acceptance(np.full((1, 4), 10), np.full((1, 4), 8), None, np.array([40]), np.array([10]))
    seconds = np.full((1, 1), 2.0)
    costs = measure.Costs((1,), (1, 4), 64, seconds, seconds / 8, np.array([[[2.2, 4.0]]]))
    setting = Setting.of(measure.Measurement(found, costs, 1, 4, 40, (Repeat(Loop(), Loop(), (1, 1), 10),)))
    assert setting.alpha == pytest.approx((0.8,) * 4)
    assert (setting.c, setting.gamma, setting.batch) == (0.125, 4, 1)
    assert setting.v == pytest.approx((1.1, 1.4, 1.7, 2.0))


@pytest.mark.parametrize(
    ("control", "value", "field"),
    [("alpha", 0.5, "alpha"), ("gamma", 9, "gamma"), ("c", 0.3, "c"), ("v", 2.0, "v")],
)
def test_by_hand_a_slider_moves_its_number_and_the_picture(control, value, field):
    widget = lab.sliders(Setting())
    before = widget.picture.value
    widget.controls[control].value = value
    assert getattr(widget.setting, field) == value
    assert widget.setting.summary() == widget.line.value
    assert widget.picture.value != before
    assert widget.picture.value == png(widget.setting)
    assert widget.controls["batch"].disabled
    assert not widget.controls["c"].disabled


def test_on_a_chip_every_control_moves_the_prediction():
    widget = lab.sliders(ON_CHIP)
    assert widget.setting == ON_CHIP
    assert widget.controls["c"].disabled
    assert not widget.controls["batch"].disabled
    moves = {"costs": "A100", "target": "Llama-3.1-70B", "draft": "Qwen2.5-7B", "batch": 256, "context": 32768}
    for control, value in moves.items():
        before = widget.setting.costs(), widget.picture.value
        widget.controls[control].value = value
        assert widget.setting.costs() != before[0]
        assert widget.picture.value != before[1]


def test_shapes_go_by_their_names_and_one_of_your_own_stays():
    own = replace(PAIR.draft, layers=3)
    widget = lab.sliders(Setting(on=replace(PAIR, draft=own)))
    assert [widget.controls[kind].value for kind in ("target", "draft")] == ["Llama-3.1-8B", "as given"]
    assert widget.setting.on.draft == own
    widget.controls["gamma"].value = 2
    assert widget.setting.on.draft == own


def test_from_by_hand_to_a_chip_and_back():
    widget = lab.sliders(Setting(c=0.07))
    widget.controls["costs"].value = "H200"
    assert widget.setting.on.chip == Chip.named("H200")
    widget.controls["costs"].value = "c and v by hand"
    assert widget.setting == Setting(c=0.07)


def test_what_was_measured_cant_be_moved():
    widget = lab.sliders(MEASURED)
    assert all(widget.controls[name].disabled for name in ("alpha", "v"))
    widget.controls["gamma"].value = 3
    widget.controls["c"].value = 0.1
    assert widget.setting.speedup() == pytest.approx((1 + 0.8 + 0.56 + 0.504) / (0.3 + 1.4))


@pytest.mark.parametrize("setting", [Setting(), ON_CHIP, MEASURED])
def test_the_still_picture_is_the_widget_s(setting):
    assert lab.sliders(setting).picture.value == png(setting)
    figure = lab.still(setting)
    assert plt.get_fignums() == []
    assert len(figure.axes) == (4 if setting.on else 2)
    titles = [axes.get_title(loc="left") for axes in figure.axes[:2]]
    assert titles == [
        f"γ = {setting.gamma}: speedup {setting.speedup():.2f}"
        + ("" if setting.best == setting.gamma else f"; γ = {setting.best}: {setting.speedup(setting.best):.2f}")
        + ", the best",
        f"{setting.tokens():.2f} tokens per step, of at most {setting.gamma + 1}",
    ]
    assert all(axes.get_xlabel() and axes.get_ylabel() for axes in figure.axes)
    assert figure.axes[0].get_ylabel() == f"speedup at batch {setting.batch}"


def test_the_panel_by_batch_agrees_with_the_one_by_gamma_for_an_alpha_by_position():
    setting = Setting(alpha=(0.9, 0.5, 0.1, 0.1), gamma=2, on=PAIR, batch=64)
    by_batch = lab.still(setting).axes[3].lines[0].get_ydata()
    assert by_batch[lab_plots.BATCHES.index(64)] == pytest.approx(setting.speedup(setting.best))
    assert setting.best == 2
    for at, batch in enumerate(lab_plots.BATCHES):
        there = replace(setting, batch=batch)
        assert by_batch[at] == pytest.approx(max(there.speedup(gamma) for gamma in range(5)))


def test_titles_answer():
    titles = [axes.get_title(loc="left") for axes in lab.still(replace(ON_CHIP, batch=256)).axes]
    assert titles[0] == "γ = 4: speedup 1.17; γ = 2: 1.28, the best"
    assert titles[2:] == [
        "v = 1.96: a verification lies beyond the ridge",
        "The best γ (in circles): 4 at batch 1, 2 at 512",
    ]
    assert "below the ridge" in lab.still(replace(ON_CHIP, batch=1)).axes[2].get_title(loc="left")


def test_by_hand_the_slider_shows_the_batch_that_the_line_names():
    widget = lab.sliders(ON_CHIP)
    widget.controls["batch"].value = 256
    widget.controls["costs"].value = "c and v by hand"
    assert widget.controls["batch"].value == widget.setting.batch == 64
    assert "at batch 64" in widget.line.value
    assert widget.picture.value == png(widget.setting)


@pytest.mark.parametrize("alpha", [Fraction(4, 5), np.float32(0.8), torch.tensor(0.8, requires_grad=True)])
def test_any_number_is_a_float(alpha):
    setting = Setting(alpha=alpha)
    assert isinstance(setting.alpha, float)
    assert setting.alpha == pytest.approx(0.8)
    assert lab.sliders(setting).picture.value == png(setting)


@pytest.mark.parametrize("alpha", [[Fraction(4, 5), Fraction(1, 2)], np.array([0.8, 0.5]), torch.tensor([0.8, 0.5])])
def test_any_sequence_is_a_tuple(alpha):
    setting = Setting(alpha=alpha, gamma=2)
    assert setting.alpha == pytest.approx((0.8, 0.5))
    assert lab.sliders(setting).setting == setting


@pytest.mark.parametrize("open_lab", [lab.still, lab.sliders, Setting.of])
def test_the_lab_is_of_a_setting(open_lab):
    with pytest.raises(SpecnbError, match="expected a"):
        open_lab(3)


def test_the_roofline_s_points_follow_the_batch():
    points = [
        lab_plots.page(Setting(on=PAIR, batch=batch)).axes[2].collections[0].get_offsets()[0, 0] for batch in (1, 64)
    ]
    assert points[0] == PAIR.target.forward(1, 1, PAIR.context).total.intensity
    assert points[1] > 10 * points[0]


def test_a_notebook_stores_the_picture_and_a_line_without_its_bytes():
    widget = lab.sliders(ON_CHIP)
    bundle = widget._repr_mimebundle_()
    assert base64.b64decode(bundle["image/png"]) == widget.picture.value
    assert repr(widget).startswith("lab.sliders(γ = 4: 3.36 tokens per step, c = 0.197, v = 1.06, speedup 1.82")
    assert "PNG" not in bundle["text/plain"]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"gamma": 17}, "gamma is 17; expected 0 to 16"),
        ({"gamma": 2.5}, "gamma is 2.5; expected an integer"),
        ({"alpha": (0.5, 0.5), "gamma": 3}, "gamma is 3; expected 0 to 2"),
        ({"v": (1.1,), "gamma": 2}, "gamma is 2; expected 0 to 1"),
        ({"alpha": 1.5}, "alpha is 1.5; expected a probability"),
        ({"c": -1}, "c is -1; expected a finite cost"),
        ({"on": PAIR, "batch": 0}, "batch is 0"),
        ({"batch": -3}, "batch is -3; expected at least 1"),
        ({"batch": "a"}, "batch is 'a'; expected an integer"),
        ({"c": (0.1, 0.2)}, r"c is \(0.1, 0.2\); expected one number"),
        ({"alpha": np.ones((2, 2))}, "expected one number or a sequence"),
        ({"alpha": ()}, r"alpha is \(\); expected one number or a sequence of them, not empty"),
        ({"alpha": theory.alpha}, "alpha is alpha; expected one number"),
        ({"on": PAIR.chip}, "on is a Chip; expected a roofline.Speculation"),
        ({"on": replace(PAIR, context=np.array([1, 2]))}, "with one context"),
    ],
)
def test_refusals_say_what_came_and_what_is_expected(changes, sentence):
    with pytest.raises(SpecnbError, match=sentence):
        Setting(**changes)
