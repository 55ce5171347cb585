"""From logits to the distributions p and q that everything else is about, and draws from them."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import numpy as np

from specnb import backends, rules
from specnb.arrays import convert, describe, floats, is_torch, like, on_host, to_numpy
from specnb.errors import SpecnbError
from specnb.rules import Rule
from specnb.streams import draft_word, keys

MAX_VOCABULARY = 2**20
"""Largest V of a verdict or a draw: up to here a row that is no distribution is noticed before an integer sum could
pass 2^63."""

MAX_LOGITS = 2**18
"""Largest vocabulary of `probabilities`: beyond it an integer sum of masses could pass 2^63."""


@dataclass(frozen=True, eq=False)
class Sampling:
    """How logits become a distribution: temperature, then top-k, then top-p, then min-p.

    Each is a number for all requests or one value per row [B]. Equal logits are kept or dropped together, so
    a tie at a threshold keeps all of the tied tokens (where transformers' top-p may split them).

    temperature: 0, or 1e-30 … 1e30; 0 puts all mass on the largest logit, the lowest id first (greedy decoding).
    top_k: keep a token if fewer than top_k logits are larger; None or 0 is off.
    top_p: in (0, 1]; keep a token if the tokens above it hold less than top_p (Holtzman et al. 2020).
    min_p: in [0, 1]; keep a token if its probability is at least min_p times the largest.

    >>> Sampling(temperature=0.7, top_p=0.9)
    Sampling(temperature=0.7, top_k=None, top_p=0.9, min_p=None)
    """

    temperature: Any = 1.0
    top_k: Any = None
    top_p: Any = None
    min_p: Any = None

    def __post_init__(self) -> None:
        _require("temperature", self.temperature, lambda t: (t == 0) | (t >= 1e-30) & (t <= 1e30), "0, or 1e-30 … 1e30")
        _require("top_k", self.top_k, lambda k: (k >= 0) & (k <= 2**62) & (k % 1 == 0), "an integer, 1 … 2^62, or None")
        _require("top_p", self.top_p, lambda t: (t > 0) & (t <= 1), "in (0, 1], or None")
        _require("min_p", self.min_p, lambda t: (t >= 0) & (t <= 1), "in [0, 1], or None")

    def parameters(self, batch: int, positions: int, reference: Any) -> list[Any]:
        """Return temperature, top_k, top_p and min_p as arrays [batch·positions] like the reference array."""
        defaults = (self.temperature, 1.0), (self.top_k, 0), (self.top_p, 1.0), (self.min_p, 0.0)
        return [_per_row(value, off, batch, positions, reference) for value, off in defaults]

    def arguments(self, backend: str, parameters: Any) -> tuple[Any, ...]:
        """Return parameters for a backend, but for torch None where a filter is off for all: then nothing is done."""
        values = self.temperature, self.top_k, self.top_p, self.min_p
        spared = (i and backend != "torch" and value is None for i, value in enumerate(values))
        return tuple(convert(backend, *(None if off else x for off, x in zip(spared, parameters, strict=True))))


def probabilities(logits: Any, sampling: Sampling | None = None, *, backend: str | None = None) -> Any:
    """Return the processed distributions of logits, in the arithmetic of the contract.

    Parameters
    ----------
    logits : float [V], [B, V] or [B, R, V]; V up to 2^18. float64 is rounded to float32 first.
    sampling : `Sampling`; its per-row values are shared by the R positions of a request. None is temperature 1.
    backend : "numpy", "torch" or "triton"; None chooses by the array.

    Returns
    -------
    float32 array of the same shape and framework; its rows sum to 1 within 1e-6. A row with a NaN or +inf, or
    without a finite logit, is NaN.

    Raises
    ------
    SpecnbError : wrong dtype or shape, V too large, or a backend that can't run.

    Examples
    --------
    >>> import numpy as np
    >>> probabilities(np.array([1.0, 0.0, 1.0]), Sampling(top_k=1)).tolist()
    [0.5, 0.0, 0.5]
    """
    logits = floats("logits", logits)
    if not 1 <= logits.ndim <= 3 or not 1 <= logits.shape[-1] <= MAX_LOGITS:
        raise SpecnbError(
            f"logits are {describe(logits)}; expected [V], [B, V] or [B, R, V] with 1 <= V <= {MAX_LOGITS}"
        )
    sampling = sampling_or_default(sampling)
    name = backends.default_name(logits) if backend is None else backend
    module = backends.load(name, logits.device.type if is_torch(logits) else "cpu")
    batch = logits.shape[0] if logits.ndim > 1 else 1
    positions = logits.shape[1] if logits.ndim == 3 else 1
    parameters = sampling.parameters(batch, positions, logits)
    rows = convert(name, logits.reshape(batch * positions, logits.shape[-1]))
    result = module.probabilities(*rows, *sampling.arguments(name, parameters))
    return like(result.reshape(logits.shape), logits)


def sampling_or_default(sampling: Sampling | None, name: str = "sampling") -> Sampling:
    """Return a sampling as it is, temperature 1 for None, or raise for anything else."""
    sampling = Sampling() if sampling is None else sampling
    if not isinstance(sampling, Sampling):
        raise SpecnbError(f"{name} is {sampling!r}; expected a specnb.Sampling, such as Sampling(temperature=0.7)")
    return sampling


def draw(
    probs: Any, *, seed: Any, position: Any = 0, index: int = 0, rule: str | Rule = "token", backend: str | None = None
) -> Any:
    """Draw one token per row as a drafter does: by the word of (seed, position, index) and purpose 0.

    Parameters
    ----------
    probs : float [V] or [B, V], q of the position. Values outside (0, 2) weigh nothing, and nothing is reported.
    seed : int (row b then uses stream b of that key) or int [B], one key per request; 0 <= seed < 2^63.
    position : int or int [B], absolute position of the step's first drafted token in its request.
    index : 0-based draft position within the step.
    rule : which will judge the draft. Under "coupled" the word is that of position + index and purpose 3, by which
        the target's token is drawn as well.

    Returns
    -------
    int64 [B] (or a scalar array), in the caller's framework; −1 where a row has no mass.

    Raises
    ------
    SpecnbError : wrong dtype, shape or seed.

    Examples
    --------
    >>> import numpy as np
    >>> int(draw(np.array([0.0, 1.0, 0.0]), seed=7))
    1
    """
    probs = floats("probs", probs)
    if not 1 <= probs.ndim <= 2 or not 1 <= probs.shape[-1] <= MAX_VOCABULARY:
        raise SpecnbError(f"probs are {describe(probs)}; expected [V] or [B, V] with 1 <= V <= {MAX_VOCABULARY}")
    rows = probs if probs.ndim == 2 else probs[None]
    seed, position = keys(seed, position, len(rows), rows)
    index = _draft_index(index)
    name = backends.default_name(rows) if backend is None else backend
    module = backends.load(name, rows.device.type if is_torch(rows) else "cpu")
    rows, seed, position = convert(name, rows, seed, position)
    position, index, purpose = draft_word(rules.get(rule), position, index)
    tokens = module.draw(rows, seed, position, index, purpose)
    return like(tokens if probs.ndim == 2 else tokens[0], probs)


def _require(name: str, value: Any, valid: Any, expected: str) -> None:
    """Raise if a parameter (None is off) has a value outside its range; values on a device aren't read."""
    if value is None or not on_host(value):
        return
    if _is_number(value):
        fits = valid(value)
    else:
        values = to_numpy(like(value, None, name))
        fits = values.dtype.kind in "iuf" and values.ndim <= 1 and bool(np.all(valid(values)))
    if not fits:
        raise SpecnbError(f"{name} is {value!r}; expected {expected}, one number or one per row")


def _draft_index(index: Any) -> int:
    try:
        number = operator.index(index)
    except TypeError:
        raise SpecnbError(f"index is {index!r}; expected an integer, the draft's place in its step") from None
    if not 0 <= number < 2**32:
        raise SpecnbError(f"index is {number}; expected 0 <= index < 2^32")
    return number


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _per_row(value: Any, off: float, batch: int, positions: int, reference: Any) -> Any:
    """Return a parameter as an array [batch·positions], its default where it is None."""
    value = off if value is None else value
    integral = isinstance(off, int)
    if is_torch(reference):
        import torch

        dtype = torch.int64 if integral else torch.float64
        if _is_number(value):
            return torch.full((batch * positions,), value, dtype=dtype, device=reference.device)
        return _check_rows(like(value, reference).to(dtype), batch).expand(batch).repeat_interleave(positions)
    values = _check_rows(like(value, reference).astype(np.int64 if integral else np.float64), batch)
    return np.repeat(np.broadcast_to(values, batch), positions)


def _check_rows(values: Any, batch: int) -> Any:
    """Return a parameter that has one value, or one per row, or raise."""
    if tuple(values.shape) not in ((), (1,), (batch,)):
        raise SpecnbError(
            f"a sampling parameter is {describe(values)} for {batch} rows; expected [{batch}] or a number"
        )
    return values
