"""Where the time of a run goes: forwards of the target, drafting, and the loop around them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from specnb.decoding.bare import hooked
from specnb.decoding.loop import generate
from specnb.measure import timing
from specnb.measure.timing import model_of


@dataclass
class Loop:
    """One run by the clock: seconds of each target forward and of each draft step, and when the rounds were.

    A draft step is a forward of the draft model; of a drafter that is no model, its share of a proposal. The first
    forward of each model reads the prompt. marks: at the start of each target forward, the time and the seconds
    that forwards had taken so far. Medians, because a machine that does something else now and then delays a few.
    """

    target: list[float] = field(default_factory=list)
    draft: list[float] = field(default_factory=list)
    marks: list[tuple[float, float]] = field(default_factory=list)

    @property
    def overhead(self) -> float:
        """Seconds of a round outside its forwards: sampling, the verdict, masks and what the host does."""
        if len(self.marks) < 2:
            return 0.0
        elapsed, spent = np.diff(self.marks, axis=0).T
        return float(np.median(elapsed - spent))

    @property
    def forwards(self) -> float:
        """Seconds of a round's forwards, those behind the prompt's."""
        drafts = len(self.draft) / len(self.target)
        return _later(self.target) + (drafts * _later(self.draft) if drafts else 0.0)

    @property
    def prompt(self) -> float:
        """Seconds by which the forwards that read the prompt exceed the later ones."""
        return sum(max(0.0, times[0] - _later(times)) for times in (self.target, self.draft) if times)

    @property
    def draft_step(self) -> float:
        """Seconds of a draft step behind the prompt's; NaN without drafts."""
        return _later(self.draft)


def timed_run(target: Any, drafter: Any, prompts: Any, **options: Any) -> Loop:
    """Decode by `specnb.generate` and return where the time went; an interrupted run raises KeyboardInterrupt."""
    loop = Loop()
    with _hooks(loop, target, model_of(drafter)) as watched:
        decode(target, watched(drafter), prompts, **options)
    return loop


def decode(target: Any, drafter: Any, prompts: Any, **options: Any) -> Any:
    """Decode to the end of every budget, or raise KeyboardInterrupt if somebody stopped it."""
    run = generate(target, drafter, prompts, eos_token_id=None, **options)
    if run.interrupted:
        raise KeyboardInterrupt
    return run


@contextmanager
def _hooks(loop: Loop, target: Any, draft: Any) -> Iterator[Any]:
    """Time the forwards of both models until the end; yields what wraps a drafter. The models end as they were."""
    drafting: list[bool] = []  # not empty while a drafter proposes: then every forward is its own
    begun: list[float] = []

    def before(module: Any, arguments: Any) -> None:
        begun.append(timing.now(module.device))
        if not drafting:
            loop.marks.append((begun[-1], sum(loop.target) + sum(loop.draft)))

    def after(module: Any, arguments: Any, output: Any) -> None:
        seconds = timing.now(module.device) - begun.pop()
        if not drafting:
            loop.target.append(seconds)
        elif draft is not None:
            loop.draft.append(seconds)

    with hooked((model for model in (target, draft) if model is not None), before, after):
        yield lambda drafter: drafter and _Watched(drafter, loop, drafting, target.device, timed=draft is None)


@dataclass
class _Watched:
    """A drafter that says when it proposes, and is timed if no model of it is."""

    drafter: Any
    loop: Loop
    drafting: list[bool]
    device: torch.device
    timed: bool

    def start(self, *arguments: Any) -> Any:
        return _WatchedRun(self.drafter.start(*arguments), self)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.drafter, name)


class _WatchedRun:
    def __init__(self, run: Any, watched: _Watched) -> None:
        self._run, self._watched = run, watched

    def propose(self, *arguments: Any) -> Any:
        watched, begun = self._watched, timing.now(self._watched.device)
        watched.drafting.append(True)
        try:
            proposal = self._run.propose(*arguments)
        finally:
            watched.drafting.pop()
        if watched.timed and (steps := proposal.tokens.shape[1]):
            seconds = timing.now(watched.device) - begun
            watched.loop.draft.extend([seconds / steps] * steps)
        return proposal

    def __getattr__(self, name: str) -> Any:
        return getattr(self._run, name)


def _later(times: list[float]) -> float:
    return float(np.median(times[1:] or times)) if times else float("nan")
