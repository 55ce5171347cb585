"""Latencies of a function of a batch: in a graph where it can be captured, its buffers in the cache or past it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from specnb_kernels.bench_inputs import Batch, Size

LAUNCH = {"probabilities": 5.1, "logits": 8.0}  # µs of a verdict that reads next to nothing: a model, never measured
STREAMED = 0.866  # of an H100's 3.35 TB/s that the same model gives a streaming loop
MODEL_BANDWIDTH = 3.35e12


class Times(NamedTuple):
    """Microseconds per call."""

    median: float
    p20: float
    p80: float
    repeats: int


def predicted(size: Size) -> float:
    """Return the microseconds that the model of kernels/README.md predicts for an H100."""
    streamed = size.least_bytes()
    if size.source == "logits":  # the deciding rows are read again
        streamed += 2 * size.batch * size.vocabulary * 2
    return LAUNCH[size.source] + streamed / (STREAMED * MODEL_BANDWIDTH) * 1e6


def quantiles(microseconds: list[float]) -> Times:
    """Return median, 20th and 80th percentile."""
    ordered = sorted(microseconds)
    at = lambda share: ordered[min(int(share * len(ordered)), len(ordered) - 1)]  # noqa: E731  one line, used twice
    return Times(statistics.median(ordered), at(0.2), at(0.8), len(ordered))


def calls(function: Callable[[Batch], Any], batches: list[Batch], dry: bool) -> tuple[list[Callable[[], Any]], str]:
    """Return the function bound to each batch, captured in a graph if it can be, and which of the two."""
    eager = [lambda b=b: function(b) for b in batches]
    if dry:
        eager[0]()
        return eager, "eager"
    for _ in range(3):
        eager[0]()
    torch.cuda.synchronize()
    try:
        replays = []
        for call in eager:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                call()
            replays.append(graph.replay)
        return replays, "graph"
    except Exception:  # what waits for the host can't be captured, each library in its own way
        torch.cuda.synchronize()
        return eager, "eager"


def clone(b: Batch) -> Batch:
    """Return a batch in memory of its own."""
    return {k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in b.items()}


def copies(b: Batch, cold: bool, cache: int, most: int = 64) -> list[Batch]:
    """Return one batch, or so many copies that a round through them passes twice through the cache."""
    size = sum(v.numel() * v.element_size() for v in b.values() if isinstance(v, torch.Tensor))
    return [b] if not cold else [clone(b) for _ in range(max(2, min(most, -(-2 * cache // max(size, 1)))))]


def timed(functions: list[Callable[[], Any]], seconds: float, dry: bool) -> Times:
    """Return the times of single calls, the functions in turn, for about so many seconds."""
    least, most = (2, 2) if dry else (10, 200)
    taken: list[float] = []
    end = time.perf_counter() + seconds
    for function in () if dry else functions[:3]:
        function()
    while len(taken) < most and (len(taken) < least or time.perf_counter() < end):
        function = functions[len(taken) % len(functions)]
        if dry:
            start = time.perf_counter()
            function()
            taken.append((time.perf_counter() - start) * 1e6)
            continue
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        first.record()
        function()
        last.record()
        last.synchronize()
        taken.append(first.elapsed_time(last) * 1e3)
    return quantiles(taken)


def copy_bandwidth(device: torch.device, size: int, dry: bool) -> float:
    """Return bytes per second, read and written, of a copy of so many bytes."""
    source = torch.empty(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    times = timed([lambda: target.copy_(source)], 0.5, dry)
    return 2 * size / (times.median * 1e-6)
