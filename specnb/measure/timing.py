"""c and v by the clock: bare forwards of the models, timed in turn so that what else the machine does falls on all."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from tqdm import tqdm
from transformers import PreTrainedModel

from specnb.decoding import bare
from specnb.decoding.arguments import check_count, check_drafter, check_switch
from specnb.decoding.bare import Bare, Clock
from specnb.decoding.support import beyond_positions
from specnb.drafters import ModelDrafter
from specnb.errors import SpecnbError

if TYPE_CHECKING:
    import pandas as pd

clock: Clock = time.perf_counter
"""What tells the time, in seconds."""
LOW, HIGH = 20, 80
"""The percentiles, over repeats, of what is reported as low and high."""


def now(device: torch.device) -> float:
    """Return the time at which a device has done all that it was asked for."""
    return bare.now(device, clock)


@dataclass(frozen=True, eq=False, repr=False)
class Costs:
    """Seconds of bare forwards, [repeats, batches] each; c and v are medians of their ratios within a repeat.

    plain: the target with one token per request. draft: the draft model with one, or NaN for a drafter that is no
    model. verification: the target with γ + 1, [repeats, batches, gammas]. context: cached tokens per request.
    """

    batches: tuple[int, ...]
    gammas: tuple[int, ...]
    context: int
    plain: np.ndarray
    draft: np.ndarray
    verification: np.ndarray
    interrupted: bool = False

    def c(self, batch: int = 1) -> float:
        """Return the cost of a draft step at a batch that was timed, in bare target forwards."""
        return middle(self._c(batch))

    def v(self, batch: int = 1, gamma: int = 1) -> float:
        """Return the cost of a verification of gamma drafts at a batch that was timed, in bare target forwards."""
        return middle(self._v(batch, gamma))

    def seconds(self, kind: str, rows: float, gamma: int = 0) -> np.ndarray:
        """Return the seconds of a forward, one per repeat, at a number of rows between those timed, linearly.

        kind: plain, draft or verification.
        """
        times = getattr(self, kind)
        times = times[..., _place("gamma", self.gammas, gamma)] if kind == "verification" else times
        return np.array([np.interp(rows, self.batches, each) for each in times])

    def first(self, repeats: int) -> Costs:
        """Return the costs of the first repeats alone."""
        plain, draft, verification = (times[:repeats] for times in (self.plain, self.draft, self.verification))
        return replace(self, plain=plain, draft=draft, verification=verification)

    def to_frame(self) -> pd.DataFrame:
        """Return tidy columns quantity (c or v), batch, gamma, value, low, high (percentiles 20, 80), seconds."""
        import pandas as pd

        rows = []
        for batch in self.batches:
            rows.append(("c", batch, 1, *spread(self._c(batch)), middle(self.seconds("draft", batch))))
            for gamma in self.gammas:
                seconds = middle(self.seconds("verification", batch, gamma))
                rows.append(("v", batch, gamma, *spread(self._v(batch, gamma)), seconds))
        return pd.DataFrame(rows, columns=["quantity", "batch", "gamma", "value", "low", "high", "seconds"])

    def _c(self, batch: int) -> np.ndarray:
        at = _place("batch", self.batches, batch)
        return self.draft[:, at] / self.plain[:, at]

    def _v(self, batch: int, gamma: int) -> np.ndarray:
        at, which = _place("batch", self.batches, batch), _place("gamma", self.gammas, gamma)
        return self.verification[:, at, which] / self.plain[:, at]

    def __repr__(self) -> str:
        cs = ", ".join(f"{batch}: {self.c(batch):.3g}" for batch in self.batches)
        vs = ", ".join(f"({b}, {g}): {self.v(b, g):.3g}" for b in self.batches for g in self.gammas)
        return f"Costs(c by batch {{{cs}}}, v by batch and gamma {{{vs}}}, repeats={len(self.plain)})"


class Timer:
    """All bare forwards of one table of costs, ready to be timed in turn."""

    def __init__(
        self, target: Any, draft: Any, gammas: Iterable[int], batches: Iterable[int], context: int, forwards: int
    ) -> None:
        self.gammas, self.batches = check_counts("gammas", gammas), check_counts("batches", batches)
        self.context = check_count("context", context, least=1)
        self.forwards = check_count("forwards", forwards, least=1)
        _check_bare("target", target, self.context + 1 + self.gammas[-1])
        if draft is not None:
            _check_bare("draft", draft, self.context + 1)
        widths = [1, *(gamma + 1 for gamma in self.gammas)]
        self.cases = [(target, batch, width) for batch in self.batches for width in widths]
        self.cases += [(draft, batch, 1) for batch in self.batches if draft is not None]
        self.bare: list[Bare] = []
        self.times: list[list[list[float]]] = []
        self.samples: list[np.ndarray] = []

    def tick(self) -> None:
        """Time each forward some times in a row, as they come in decoding: what it reads is then still in a cache."""
        if not self.bare:
            self.bare = [Bare(*case, self.context) for case in self.cases]
        self.times.append([[each.seconds(clock) for _ in range(self.forwards)] for each in self.bare])

    def close(self) -> None:
        """Keep the medians of the ticks since the last close as one repeat."""
        self.samples.append(np.median(self.times, axis=(0, 2)))
        self.times = []

    def costs(self, interrupted: bool = False) -> Costs:
        """Return what has been timed so far."""
        R, B, G = len(self.samples), len(self.batches), len(self.gammas)
        samples = np.array(self.samples).reshape(R, len(self.cases))
        target = samples[:, : B * (G + 1)].reshape(R, B, G + 1)
        drafted = samples[:, B * (G + 1) :]
        draft = drafted if drafted.shape[1] else np.full((R, B), np.nan)
        return Costs(self.batches, self.gammas, self.context, target[..., 0], draft, target[..., 1:], interrupted)


def costs(
    target: Any,
    drafter: Any,
    *,
    gammas: Sequence[int] = (1, 2, 4, 8),
    batches: Sequence[int] = (1,),
    context: int = 128,
    repeats: int = 5,
    forwards: int = 10,
    progress: bool = True,
) -> Costs:
    """Time bare forwards: c and v by batch and γ, in units of a bare forward of the target with one token per row.

    Parameters
    ----------
    target : a transformers model in eval mode.
    drafter : a `specnb.drafters.ModelDrafter` or a model. Of any other drafter, or None, there is no forward to time
        and c is NaN; `speed` times its proposals in decoding.
    gammas, batches : what v is timed for, integers of at least 1.
    context : cached tokens per request, at least 1, and no more than the models' positions leave.
    repeats, forwards : at least 1; each repeat times every forward so many times in a row, and keeps the median.
    progress : show a bar on stderr. After Ctrl-C, the complete repeats come back.

    Raises
    ------
    SpecnbError : a count is out of range, or target or drafter is none.

    Examples
    --------
    >>> import specnb
    >>> target, draft, _ = specnb.load_pair()
    >>> found = costs(target, specnb.drafters.ModelDrafter(draft), gammas=[4], repeats=2, forwards=2, progress=False)
    >>> 0 < found.c() < found.v(gamma=4)
    True
    """
    repeats = check_count("repeats", repeats, least=1)
    if not isinstance(drafter, torch.nn.Module):
        check_drafter(drafter)
    check_switch("progress", progress)
    timer = Timer(target, model_of(drafter), gammas, batches, context, forwards)
    interrupted = False
    try:
        for _ in tqdm(range(repeats), unit="repeat", disable=not progress):
            timer.tick()
            timer.close()
    except KeyboardInterrupt:
        interrupted = True
    return timer.costs(interrupted)


def model_of(drafter: Any) -> Any:
    """Return the model that drafts token by token, or None if the drafter isn't one."""
    if isinstance(drafter, ModelDrafter):
        return drafter.model
    return drafter if isinstance(drafter, torch.nn.Module) else None


def check_counts(name: str, values: Any, least: int = 1) -> tuple[int, ...]:
    """Return integers of at least 1, sorted and each once, or raise `SpecnbError`; least: how many there must be."""
    listed = list(values) if isinstance(values, Iterable) and not isinstance(values, str) else None
    if listed is None or len(listed) < least:
        raise SpecnbError(f"{name} is {values!r}; expected a list of integers of at least 1, such as [1, 4]")
    return tuple(sorted({check_count(f"{name}[{at}]", value, least=1) for at, value in enumerate(listed)}))


def _check_bare(role: str, model: Any, tokens: int) -> None:
    """Raise unless it is a transformers model that knows so many positions."""
    if not isinstance(model, PreTrainedModel):
        raise SpecnbError(f"{role} is {type(model).__name__}; expected a transformers model")
    if reason := beyond_positions(model.config.get_text_config(decoder=True), tokens, "lower context or gammas"):
        raise SpecnbError(f"{role} {type(model).__name__} can't be timed here: {reason}")


def _place(name: str, timed: tuple[int, ...], value: int) -> int:
    if value not in timed:
        raise SpecnbError(f"{name} {value} wasn't timed; expected one of {', '.join(map(str, timed))}")
    return timed.index(value)


def middle(values: np.ndarray) -> float:
    """Return the median of what was measured in each repeat, NaN of nothing."""
    return float(np.median(values)) if len(values) else float("nan")


def spread(values: np.ndarray) -> tuple[float, float, float]:
    """Return the median, low and high of what was measured in each repeat."""
    if not len(values):
        return float("nan"), float("nan"), float("nan")
    low, middle, high = np.percentile(values, [LOW, 50, HIGH])
    return float(middle), float(low), float(high)
