"""transformers' sampling, read as a `Sampling`: then drafts are drawn by it too, and backends compute it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from transformers.generation import logits_process as theirs

from specnb.sampling import Sampling

_READERS = {
    theirs.TemperatureLogitsWarper: lambda w: {"temperature": float(w.temperature)},
    theirs.TopKLogitsWarper: lambda w: {"top_k": int(w.top_k)},
    theirs.TopPLogitsWarper: lambda w: {"top_p": float(w.top_p)},
    theirs.MinPLogitsWarper: lambda w: {"min_p": float(w.min_p)},
}
_ORDER = list(_READERS)
_NEUTRAL = (theirs.LogitNormalization,)
"""Processors that leave the distribution as it is, wherever they stand."""


def as_sampling(processors: Sequence[Any], do_sample: bool) -> tuple[Sampling, list[Any]]:
    """Return a sampling and the processors that stay, which together mean what these processors do.

    Temperature, top-k, top-p and min-p at the end of the list, in `Sampling`'s order, become its parameters. Others
    behind them, or another order or filter value than `Sampling` has, leave all of them what they are: processors.

    >>> as_sampling([theirs.TemperatureLogitsWarper(0.5), theirs.TopKLogitsWarper(3)], True)
    (Sampling(temperature=0.5, top_k=3, top_p=None, min_p=None), [])
    """
    rest = [p for p in processors if type(p) not in _NEUTRAL]
    if not do_sample:
        return Sampling(temperature=0), rest
    tail: list[Any] = []
    while rest and type(rest[-1]) in _READERS:
        tail.insert(0, rest.pop())
    places = [_ORDER.index(type(warper)) for warper in tail]
    plain = all(getattr(w, "min_tokens_to_keep", 1) == 1 for w in tail)
    if not plain or places != sorted(set(places)) or any(type(p) in _READERS for p in rest):
        return Sampling(), rest + tail
    values: dict[str, Any] = {}
    for warper in tail:
        values |= _READERS[type(warper)](warper)
    return Sampling(**values), rest
