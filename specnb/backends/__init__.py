"""Three independent translations of one arithmetic contract, with the same functions and signatures.

A backend is found by name, or from the arrays it is given: nothing is imported that isn't needed, and
nothing falls back silently.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any, NamedTuple

from specnb.arrays import is_torch
from specnb.errors import SpecnbError
from specnb.rules import Rule

NAMES = ("numpy", "torch", "triton")


def why_not(name: str, device: str | None = None) -> str:
    """Say why a backend can't run here (on tensors of that device type); the empty string if it can.

    >>> why_not("numpy")
    ''
    """
    if name == "numpy":
        return ""
    try:
        import torch

        if name == "torch":
            return ""
        import specnb_kernels  # noqa: F401  found out here, used by the backend
        import triton  # noqa: F401
    except ImportError as error:
        return f"{error.name} isn't installed"
    if os.environ.get("TRITON_INTERPRET") == "1":
        return ""
    if not torch.cuda.is_available():
        return "no CUDA device, and TRITON_INTERPRET=1 isn't set"
    return "the arrays are on the CPU, and TRITON_INTERPRET=1 isn't set" if device == "cpu" else ""


def default_name(array: Any, rule: Rule | None = None) -> str:
    """Name the backend for an array: NumPy → numpy, CPU tensor → torch, CUDA tensor → triton, else torch.

    A rule that is known by its law alone has no kernel, so CUDA tensors go to torch.
    """
    if not is_torch(array):
        return "numpy"
    fused = rule is None or rule.sampler != "verify_by_law"
    return "triton" if fused and array.device.type == "cuda" and not why_not("triton", "cuda") else "torch"


def load(name: str, device: str | None = None) -> ModuleType:
    """Import a backend by name, or raise `SpecnbError` with the reason why it can't run."""
    if not isinstance(name, str) or name not in NAMES:
        raise SpecnbError(f"backend {name!r} is unknown; expected one of {', '.join(NAMES)}, or None to choose")
    if reason := why_not(name, device):
        raise SpecnbError(
            f"backend {name!r} can't run: {reason}; see specnb.available_backends(), or pass backend=None"
        )
    # Import statements, since torch.compile traces them where it refuses importlib.
    if name == "numpy":
        from specnb.backends import numpy as module
    elif name == "torch":
        from specnb.backends import torch as module
    else:
        from specnb.backends import triton as module
    return module


def decider(module: ModuleType, rule: Rule) -> Callable[..., tuple[Any, Any, Any]]:
    """Return the function of a backend that decides a rule; it takes the arguments of its `verify`."""
    decide = getattr(module, rule.sampler, None)
    if decide is None:
        raise SpecnbError(
            f"rule {rule.label} is known by its law alone, which backend {module.__name__.split('.')[-1]!r} can't "
            "sample; pass backend='torch' or 'numpy'"
        )
    return partial(decide, rule.law) if rule.sampler == "verify_by_law" else decide


def logits_decider(module: ModuleType, rule: Rule) -> Callable[..., tuple[Any, Any, Any]]:
    """Return the function of a backend that decides a rule from logits; its arguments are `verify_logits`' others."""
    decide = decider(module, rule)
    if rule.sampler != "verify_by_law":
        return partial(module.verify_logits, rule.name)

    def by_law(draft, y, z, draft_parameters, parameters, *others):
        q = None if y is None else module.processed(y, draft_parameters)
        return decide(draft, q, module.processed(z, parameters), *others)

    return by_law


class Availability(NamedTuple):
    """One backend, whether it can run here, and why not."""

    name: str
    available: bool
    reason: str


class AvailableBackends(tuple[Availability, ...]):
    """A tuple of `Availability`, shown as a table."""

    def __repr__(self) -> str:
        lines = [f"{'backend':<8} {'available':<9} why not"]
        lines += [f"{row.name:<8} {'yes' if row.available else 'no':<9} {row.reason}" for row in self]
        return "\n".join(line.rstrip() for line in lines)

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td>{row.name}</td><td>{'yes' if row.available else 'no'}</td><td>{row.reason}</td></tr>"
            for row in self
        )
        return f"<table><tr><th>backend</th><th>available</th><th>why not</th></tr>{rows}</table>"


def available_backends() -> AvailableBackends:
    """Return a table of the backends: name, whether it can run on this machine, and why not."""
    reasons = ((name, why_not(name)) for name in NAMES)
    return AvailableBackends(Availability(name, not reason, reason) for name, reason in reasons)
