"""Asking somebody's sampler for tokens, and reading what comes back: tokens, an error, or neither."""

from __future__ import annotations

import contextlib
import inspect
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeGuard

import numpy as np

from specnb.arrays import describe, is_torch, to_numpy
from specnb.errors import SpecnbError

Sampler = Callable[..., Any]
"""A function (draft [G], q [G, V], p [G+1, V], uniforms [G+1]) → the emitted tokens, or without the uniforms.

It may have an attribute `batch`, the same for uniforms [B, G+1] at once, which returns one row of tokens for each.
"""


class Raised(str):
    """The exception that a sampler raised."""


class Invalid(str):
    """What a sampler returned that are no tokens."""


Outcome = tuple[int, ...] | Raised | Invalid


def is_tokens(outcome: Outcome | None) -> TypeGuard[tuple[int, ...]]:
    """Tell whether an outcome is what was asked for."""
    return isinstance(outcome, tuple)


Given = tuple[np.ndarray, np.ndarray, np.ndarray]
"""A draft and its rows q and p."""


class Fault(NamedTuple):
    """A call that returned no tokens: what came instead, and its arguments."""

    what: str
    draft: list[int]
    q: list[list[float]]
    p: list[list[float]]
    uniforms: list[float] | None


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Let nothing that a sampler warns of be printed or raised: what counts is what it returns."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        yield


def takes_uniforms(sampler: Sampler) -> bool:
    """Tell from its signature whether a sampler takes uniforms, or draws for itself."""
    try:
        parameters = inspect.signature(sampler).parameters.values()
    except (TypeError, ValueError):
        raise SpecnbError(f"{name_of(sampler)} has no signature; pass injectable=True if it takes uniforms") from None
    required = [each for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    required = [each.name for each in required if each.default is each.empty]
    if len(required) not in (3, 4):
        raise SpecnbError(
            f"{name_of(sampler)} takes {required}; expected (draft, q, p, uniforms) or (draft, q, p); "
            "pass injectable=True if it takes uniforms all the same"
        )
    return len(required) == 4


def name_of(sampler: Sampler) -> str:
    """Return a sampler's own name."""
    return getattr(sampler, "__name__", type(sampler).__name__)


def ask(sampler: Sampler, draft: np.ndarray, q: np.ndarray, p: np.ndarray, *uniforms: np.ndarray) -> Outcome:
    """Return what a sampler says to a draft, its rows and the uniforms, if it takes any."""
    gamma, V = len(draft), p.shape[1]
    try:
        tokens = sampler(draft, q, p, *uniforms)
    except Exception as error:  # whatever it is, it is the finding
        return Raised(f"{type(error).__name__}: {error}".splitlines()[0])
    return read(tokens, gamma, V)


def ask_all(sampler: Sampler, given: Given, points: Sequence) -> list[Outcome]:
    """Return what a sampler says for each of many points of uniforms [N, G+1]; each call gets copies of the arrays."""
    gamma, V = len(given[0]), given[2].shape[1]
    uniforms = np.array(points, np.float64).reshape(-1, gamma + 1)
    batch = getattr(sampler, "batch", None)
    if batch is not None:
        with contextlib.suppress(Exception):  # asked one by one, it shows which of them it raises for
            return [read(tokens, gamma, V) for tokens in batch(*copies(given), uniforms)]
    return [ask(sampler, *copies(given), row) for row in uniforms]


def copies(given: Given) -> Given:
    """Return arrays that a sampler may change."""
    draft, q, p = given
    return draft.copy(), q.copy(), p.copy()


def noted(outcome: Outcome, given: Given, uniforms: Any, faults: dict[str, Fault]) -> Outcome:
    """Return an outcome, after adding the first call with each text that came instead of tokens to `faults`."""
    if isinstance(outcome, str) and outcome not in faults:
        draft, q, p = given
        faults[outcome] = Fault(outcome, draft.tolist(), q.tolist(), p.tolist(), uniforms and list(uniforms))
    return outcome


def read(tokens: Any, gamma: int, vocabulary: int) -> Outcome:
    """Return 1 … γ+1 ids of the vocabulary, from a list or an array that may be padded with −1.

    >>> read([2, 0, -1], gamma=2, vocabulary=3)
    (2, 0)
    >>> read([0.5], gamma=2, vocabulary=3)
    'returned float64 [1]'
    """
    try:
        array = to_numpy(tokens) if is_torch(tokens) else np.asarray(tokens)
    except (TypeError, ValueError):
        return Invalid(f"returned {type(tokens).__name__}")
    if array.ndim != 1 or array.dtype.kind not in "iu":
        return Invalid(f"returned {describe(array)}")
    ids = array.tolist()
    while ids and ids[-1] == -1:
        ids.pop()
    fits = 1 <= len(ids) <= gamma + 1 and all(0 <= token < vocabulary for token in ids)
    return tuple(ids) if fits else Invalid(f"returned {array.tolist()}")
