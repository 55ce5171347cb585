"""How long a verdict's fused kernels take on a chip: their launches and the bytes that they read, all predicted.

The constants are a model's. Nothing here was measured: the kernels have not run on a GPU.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from specnb.errors import SpecnbError
from specnb.roofline.chips import Chip
from specnb.roofline.shapes import at_least

LAUNCHES = {"probabilities": 5.1e-6, "logits": 8.0e-6}
"""Seconds of a verdict whose rows are too short to matter: one launch, or two."""
STREAMED = 0.866
"""The share of a chip's bandwidth that a loop over rows is given."""


def verdict_bytes(batch: Any, gamma: Any, vocabulary: Any, source: str = "logits", rejected: bool = True) -> Any:
    """Return the bytes of the rows that the fused kernels read for a batch's verdicts by the rule `token`.

    Parameters
    ----------
    batch, gamma, vocabulary : numbers or arrays that broadcast: requests, drafts per request, ids.
    source : "probabilities" (float32; the deciding rows alone) or "logits" (bfloat16, of both models; every row, then
        the deciding ones again).
    rejected : whether p and q decide, behind a rejection, or the bonus row alone.

    Raises
    ------
    SpecnbError : a source of another name, or a number that is too small.

    Examples
    --------
    >>> [verdict_bytes(1, 4, 1, source, rejected) for source in LAUNCHES for rejected in (False, True)]
    [4, 8, 20, 22]
    """
    if source not in LAUNCHES:
        raise SpecnbError(f"source is {source!r}; expected one of {', '.join(LAUNCHES)}")
    for name, value, least in (("batch", batch, 1), ("gamma", gamma, 0), ("vocabulary", vocabulary, 1)):
        at_least(name, value, least)
    deciding = 2 if rejected else 1
    width, rows = (4, deciding) if source == "probabilities" else (2, 2 * gamma + 1 + deciding)
    return width * rows * batch * vocabulary


def verdict_seconds(
    chip: Chip, batch: Any, gamma: Any, vocabulary: Any, source: str = "logits", rejected: bool = True
) -> Any:
    """Predict the time of a batch's verdicts: a latency, and the bytes of `verdict_bytes` at 0.866 of the bandwidth.

    Examples
    --------
    >>> h100 = Chip.named("H100 SXM")
    >>> [round(float(1e6 * verdict_seconds(h100, batch, 4, 128256, "probabilities")), 1) for batch in (1, 64)]
    [5.5, 27.7]
    """
    read = verdict_bytes(batch, gamma, vocabulary, source, rejected)
    return LAUNCHES[source] + np.divide(read, STREAMED * chip.bandwidth)
