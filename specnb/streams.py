"""What identifies a request's random stream: its seed and its position, checked and made uniform."""

from __future__ import annotations

import operator
from typing import Any

from specnb.arrays import describe, dtype_name, integers, on_host
from specnb.backends.numpy import DRAFTING, OWN
from specnb.errors import SpecnbError
from specnb.rules import Rule

MAX_SEED = 2**63 - 1

STREAMS = 2**32
"""Requests that one key has a stream for: the counter has 32 bits of them."""


def keys(seed: Any, position: Any, batch: int, reference: Any) -> tuple[Any, Any]:
    """Return seed and position, each a Python int or int64 [B] like the reference, or raise `SpecnbError`."""
    return (
        per_row("seed", seed, batch, reference, 0, MAX_SEED),
        per_row("position", position, batch, reference, 0, MAX_SEED),
    )


def check_seeds(seed: Any) -> None:
    """Raise `SpecnbError` unless it may be the seed of a batch, whatever its size."""
    several = hasattr(seed, "__len__") and getattr(seed, "ndim", 1)
    per_row("seed", seed, len(seed) if several else 1, seed, 0, MAX_SEED)


def draft_word(rule: Rule, position: Any, index: int) -> tuple[Any, int, int]:
    """Return position, index and purpose of the word that draws draft `index` of a step that starts at `position`.

    Under the rule `coupled` that is the word of the token's own position, which verification draws by as well.
    """
    own = (position & 0xFFFFFFFF) + index  # the counter wraps there anyway, and int64 doesn't overflow
    return (own, 0, OWN) if rule.sampler == "verify_coupled" else (position, index, DRAFTING)


def per_row(name: str, value: Any, batch: int, reference: Any, low: int, high: int) -> Any:
    """Return one int for the batch or int64 [B], its values checked where that needs no device."""
    if isinstance(value, bool) or (hasattr(value, "dtype") and dtype_name(value) == "bool"):
        raise SpecnbError(f"{name} is {value}; expected an integer")
    if not hasattr(value, "ndim") or value.ndim == 0:
        try:
            number = operator.index(value)
        except TypeError:
            pass
        else:
            if not low <= number <= high:
                raise SpecnbError(f"{name} is {number}; expected {low} <= {name} <= {high}")
            return number
    values = integers(name, value, reference)
    if tuple(values.shape) != (batch,):
        raise SpecnbError(f"{name} is {describe(values)}; expected one integer, or one per request: [{batch}]")
    if on_host(values) and not bool((fits := (values >= low) & (values <= high)).all()):
        row = int((~fits).nonzero()[0][0])
        raise SpecnbError(f"{name}[{row}] is {int(values[row])}; expected {low} <= {name} <= {high}")
    return values
