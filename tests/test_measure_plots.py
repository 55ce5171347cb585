"""Drafters side by side, and the causes of a speedup: what is drawn is what was measured."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

from specnb import SpecnbError, measure_plots
from specnb.measure import Acceptance
from specnb.measure.reports import STAGES


def accepted(counts, judged=10):
    """Return the acceptance of three requests that judged as many drafts at each of two positions."""
    shape = (3, 2)
    kept = np.broadcast_to(counts, shape)
    return Acceptance(np.full(shape, judged), kept, kept * 0.9, np.full(3, 30), np.full(3, 20))


def test_drafters_are_drawn_by_position_and_by_request():
    few, many = accepted([[2, 4], [2, 4], [5, 4]]), accepted([[8, 9]])
    figure = measure_plots.drafters({"few": few, "many": many})
    left, right = figure.axes
    assert figure.get_suptitle() == "Accepted drafts: many 0.85, few 0.35"
    for container, found in zip(left.containers, (few, many), strict=True):
        x, y = container.lines[0].get_data()
        assert np.round(x).tolist() == [1, 2]
        assert np.asarray(y).tolist() == found.alpha.tolist()
    dashes = [
        np.asarray(each.get_offsets())[:, 1].tolist() for each in left.collections if len(each.get_offsets()) == 2
    ]
    assert [found.exact.tolist() for found in (few, many)] == dashes
    requests, pooled = right.lines[0], right.lines[1]
    assert requests.get_xdata().tolist() == few.by_request.tolist()
    assert list(pooled.get_xdata()) == [few.pooled] * 2
    assert [label.get_text() for label in right.get_yticklabels()] == ["few", "many"]
    assert len({line.get_marker() for line in right.lines[::2]}) == 2
    assert not plt.get_fignums()


@pytest.mark.parametrize("count", [0, 7])
def test_more_drafters_than_marks_are_refused(count):
    with pytest.raises(SpecnbError, match=f"found has {count} drafters; expected 1 … 6"):
        measure_plots.drafters({str(i): accepted([[1, 1]]) for i in range(count)})


def test_causes_lead_from_the_textbook_to_the_clock_batch_by_batch():
    speedups = np.linspace(2, 1.3, len(STAGES))
    table = pd.concat(
        pd.DataFrame({"batch": batch, "with": STAGES, "speedup": speedups / batch, "low": 1.0, "high": 2.0})
        for batch in (1, 2)
    )
    figure = measure_plots.causes(table)
    (axes,) = figure.axes
    assert figure.get_suptitle() == "Predicted and achieved: 1.60 and 1.30 at batch 1, 0.80 and 0.65 at batch 2"
    for container, batch in zip(axes.containers, (1, 2), strict=True):
        assert container.lines[0].get_xdata().tolist() == (speedups / batch).tolist()
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert labels[0] == STAGES[0]
    assert labels[4:] == [f"+ {STAGES[4]} = predicted", *(f"+ {name}" for name in STAGES[5:7]), "achieved"]
