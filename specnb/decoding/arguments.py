"""Arguments of the public functions, checked before any model runs: what is wrong is said in one way."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np

from specnb.errors import SpecnbError


def check_count(name: str, value: Any, least: int = 0, most: int | None = None) -> int:
    """Return an integer argument, or raise `SpecnbError`."""
    whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if not whole or value < least or (most is not None and value > most):
        limit = "" if most is None else f" and <= {most}"
        raise SpecnbError(f"{name} is {value!r}; expected an integer >= {least}{limit}")
    return int(value)


def check_number(name: str, value: Any, low: float, high: float) -> float:
    """Return a number between low and high, neither of them, or raise `SpecnbError`."""
    try:
        number = float(value) if isinstance(value, Real) and not isinstance(value, bool) else math.nan
    except OverflowError:  # an integer beyond float64
        number = math.inf
    if not low < number < high:
        raise SpecnbError(f"{name} is {value!r}; expected a number between {low} and {high}, neither of these")
    return number


def check_switch(name: str, value: Any) -> bool:
    """Return an argument that is True or False, or raise `SpecnbError`."""
    if not isinstance(value, (bool, np.bool_)):
        raise SpecnbError(f"{name} is {value!r}; expected True or False")
    return bool(value)


def check_drafter(drafter: Any) -> None:
    """Raise `SpecnbError` unless it is a drafter or None."""
    if drafter is None or (callable(getattr(drafter, "start", None)) and not isinstance(drafter, type)):
        return
    import torch  # here, since functions that need no model check their arguments too

    hint = "wrap it: specnb.drafters.ModelDrafter(model)" if isinstance(drafter, torch.nn.Module) else "or None"
    raise SpecnbError(f"drafter is {kind_of(drafter)}; expected one of specnb.drafters, {hint}")


def check_methods(name: str, value: Any, methods: Iterable[str], expected: str) -> None:
    """Raise `SpecnbError` unless it is an object, no class, with these methods."""
    if isinstance(value, (type, bytes)) or not all(callable(getattr(value, method, None)) for method in methods):
        raise SpecnbError(f"{name} is {kind_of(value)}; expected {expected}")


def check_tokenizer(name: str, value: Any, role: str) -> None:
    """Raise `SpecnbError` unless it is a transformers tokenizer, or one with its methods."""
    check_methods(name, value, ("get_vocab", "decode", "__call__"), f"{role} tokenizer, one of transformers")


def check_constraint(constraint: Any) -> None:
    """Raise `SpecnbError` unless it is a constraint or None."""
    if constraint is None or (callable(getattr(constraint, "matcher", None)) and not isinstance(constraint, type)):
        return
    raise SpecnbError(
        f"constraint is {_shown(constraint)}; expected one from specnb.Grammar: json_schema, regex or lark"
    )


def listed(name: str, values: Any, expected: str) -> list[Any]:
    """Return the members of an iterable, none for None, or raise `SpecnbError`."""
    try:
        return [] if values is None else list(values)
    except (TypeError, RuntimeError) as error:
        raise SpecnbError(f"{name} is {kind_of(values)}; expected a list of {expected}, or None") from error


def callables(name: str, values: Any, expected: str) -> list[Callable[..., Any]]:
    """Return a list of objects that can be called, as transformers has them, or raise `SpecnbError`."""
    members = listed(name, values, expected)
    for member in members:
        if isinstance(member, type) or not callable(member):
            raise SpecnbError(f"{name} has {_shown(member)}; expected {expected} objects")
    return members


def check_path(name: str, value: Any, expected: str) -> Path:
    """Return a path, or raise `SpecnbError`."""
    try:
        return Path(value)
    except TypeError as error:
        raise SpecnbError(f"{name} is {_shown(value)}; expected {expected}") from error


def kind_of(value: Any) -> str:
    """Say what an object is: a class by its name, anything else by that of its class."""
    return f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__


def _shown(value: Any) -> str:
    return kind_of(value) if isinstance(value, type) else repr(value)
