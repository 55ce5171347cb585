"""A bare forward of a model by the clock: transformers' own cache, and nothing of specnb's in it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
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


@contextmanager
def hooked(models: Iterable[Any], before: Callable[..., None], after: Callable[..., None]) -> Iterator[None]:
    """Call before(model, arguments) and after(model, arguments, output) around each forward; hooks end as they were."""
    with ExitStack() as stack:
        for model in {id(model): model for model in models}.values():
            stack.callback(model.register_forward_pre_hook(before).remove)
            stack.callback(model.register_forward_hook(after).remove)
        yield


@dataclass
class Spent:
    """What forwards took: the seconds of all, and how many were the target's."""

    seconds: float = 0.0
    rounds: int = 0


@contextmanager
def forwards_of(target: Any, draft: Any, clock: Clock = time.perf_counter) -> Iterator[Spent]:
    """Time the forwards of two models until the end."""
    spent = Spent()
    begun: list[float] = []

    def before(module: Any, arguments: Any) -> None:
        begun.append(now(module.device, clock))

    def after(module: Any, arguments: Any, output: Any) -> None:
        spent.seconds += now(module.device, clock) - begun.pop()
        spent.rounds += module is target

    with hooked((target, draft), before, after):
        yield spent


def forward_seconds(
    model: Any, batch: int, width: int, context: int, repeats: int, clock: Clock = time.perf_counter
) -> float:
    """Return the median time of so many forwards of `width` tokens per row behind `context` cached ones, in seconds."""
    bare = Bare(model, batch, width, context)
    return float(np.median([bare.seconds(clock) for _ in range(repeats)]))
