"""A bare forward of a model by the clock: transformers' own cache, and nothing of specnb's in it."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import DynamicCache

from specnb.decoding.cache import cache_name

Clock = Callable[[], float]
"""What tells the time, in seconds."""


def clock_of(device: torch.device) -> Clock:
    """Return CPU time where one thread does all the work, which a busy machine stretches less, or else the wall's."""
    return time.thread_time if torch.get_num_threads() == 1 and device.type == "cpu" else time.perf_counter


def now(device: torch.device, clock: Clock = time.perf_counter) -> float:
    """Return the time at which a device has done all that it was asked for."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return clock()


class Bare:
    """A forward of `width` tokens per row behind `context` cached ones."""

    @torch.inference_mode()
    def __init__(self, model: Any, batch: int, width: int, context: int) -> None:
        self.model, self.cache = model, DynamicCache(config=model.config)
        self.arguments: dict[str, Any] = {cache_name(type(model)): self.cache, "use_cache": True}
        ids = torch.zeros(batch, context + width, dtype=torch.int64, device=model.device)
        self.new = ids[:, context:]
        if context:
            model(input_ids=ids[:, :context], **self.arguments)
        self.seconds()  # the first one allocates

    @torch.inference_mode()
    def seconds(self, clock: Clock = time.perf_counter) -> float:
        """Run once and return how long it took; the cache is then as before."""
        begun = now(self.model.device, clock)
        self.model(input_ids=self.new, **self.arguments)
        ended = now(self.model.device, clock)
        self.cache.crop(-self.new.shape[1])
        return ended - begun


@dataclass
class Spent:
    """What the forwards of some models took: seconds, and how many there were of each model."""

    seconds: float
    calls: list[int]


@contextmanager
def forwards_of(models: Sequence[Any], clock: Clock = time.perf_counter) -> Iterator[Spent]:
    """Time the forwards of models until the end; their hooks are then as before."""
    spent = Spent(0.0, [0] * len(models))
    begun: list[float] = []

    def before(module: Any, arguments: Any) -> None:
        begun.append(now(module.device, clock))

    def after(which: int, module: Any, arguments: Any, output: Any) -> None:
        spent.seconds += now(module.device, clock) - begun.pop()
        spent.calls[which] += 1

    with ExitStack() as stack:
        for which, model in enumerate(models):
            stack.callback(model.register_forward_pre_hook(before).remove)
            stack.callback(model.register_forward_hook(functools.partial(after, which)).remove)
        yield spent


def forward_seconds(
    model: Any, batch: int, width: int, context: int, repeats: int, clock: Clock = time.perf_counter
) -> float:
    """Return the median time of so many forwards of `width` tokens per row behind `context` cached ones, in seconds."""
    bare = Bare(model, batch, width, context)
    return float(np.median([bare.seconds(clock) for _ in range(repeats)]))
