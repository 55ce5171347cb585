"""Predicted times of a verdict's kernels: the model's printed numbers, its limits, and that there is one model."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from specnb import roofline_plots
from specnb.errors import SpecnbError
from specnb.roofline import Chip, verdict_bytes, verdict_seconds

H100 = Chip.named("H100 SXM")
BATCHES = np.array([1, 8, 64, 256])


def test_printed_numbers():
    """As kernels/README.md has them, at V = 128,256 and γ = 4, behind a rejection."""
    microseconds = {s: 1e6 * verdict_seconds(H100, BATCHES, 4, 128256, s) for s in ("probabilities", "logits")}
    assert microseconds["probabilities"].round(1).tolist() == [5.5, 7.9, 27.7, 95.6]
    assert microseconds["logits"].round().tolist() == [9, 16, 70, 257]


def test_rows_by_hand():
    assert verdict_bytes(3, 4, 10, "probabilities") == 3 * 10 * 8
    assert verdict_bytes(3, 4, 10, "probabilities", rejected=False) == 3 * 10 * 4
    assert verdict_bytes(3, 4, 10, "logits") == 3 * 10 * 2 * (5 + 4 + 2)
    assert verdict_bytes(3, 4, 10, "logits", rejected=False) == 3 * 10 * 2 * (5 + 4 + 1)


@pytest.mark.triton
def test_the_gpu_script_compares_with_the_same_prediction():
    pytest.importorskip("triton")
    from specnb_kernels.bench_inputs import Size
    from specnb_kernels.bench_timing import predicted

    for source in ("probabilities", "logits"):
        size = Size(64, 4, 32000, source, "rejected")
        assert predicted(size) == pytest.approx(1e6 * verdict_seconds(H100, 64, 4, 32000, source), rel=1e-12)


def test_the_picture_has_units_and_an_answer():
    ways = {"ours": [9.0, 257.0], "theirs": [24.0, 1150.0]}
    data = pd.DataFrame(
        [(way, b, t) for way, times in ways.items() for b, t in zip((1, 256), times, strict=True)],
        columns=["way", "batch", "microseconds"],
    )
    axes = roofline_plots.latency(data).axes[0]
    assert axes.get_title(loc="left") == "ours: 9 µs at batch 1, 257 at 256, predicted"
    assert (axes.get_ylabel(), axes.get_yscale()) == ("predicted time (µs)", "log")
    lines = [line for line in axes.get_lines() if len(line.get_xdata())]
    assert [line.get_ydata().tolist() for line in lines] == list(ways.values())
    assert len({(line.get_linestyle(), line.get_marker()) for line in lines}) == 2


@pytest.mark.parametrize(
    ("ask", "sentence"),
    [
        (lambda: verdict_bytes(1, 4, 10, "text"), "source is 'text'; expected one of probabilities, logits"),
        (lambda: verdict_bytes(0, 4, 10), "batch is 0; expected finite numbers >= 1"),
        (lambda: verdict_bytes(1, -1, 10), "gamma is -1; expected finite numbers >= 0"),
        (lambda: verdict_seconds(H100, 1, 4, 0), "vocabulary is 0; expected finite numbers >= 1"),
    ],
)
def test_refusals_say_what_came_and_what_is_expected(ask, sentence):
    with pytest.raises(SpecnbError, match=sentence):
        ask()
