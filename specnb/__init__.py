"""Lossless speculative decoding, exact and measured: one verify API on three interchangeable backends.

Names are loaded when they are first used, so that `import specnb` needs neither torch nor transformers.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_HOMES = {
    "verify": "verification",
    "verify_logits": "verification",
    "Verdict": "verdict",
    "Status": "verdict",
    "CONTRACT": "verdict",
    "SpecnbError": "errors",
    "Sampling": "sampling",
    "probabilities": "sampling",
    "draw": "sampling",
    "available_backends": "backends",
    "law": "laws",
    "generate": "decoding.loop",
    "Generation": "decoding.generation",
    "Grammar": "decoding.grammar",
    "custom_generate": "decoding.doorway",
    "rescore": "decoding.rescoring",
    "paged": "decoding.paged_run",
    "load_pair": "pair",
    "sweep": "sweeping",
}
_MODULES = (
    "drafters",
    "lab",
    "laws",
    "measure",
    "mistakes",
    "plots",
    "proofs",
    "roofline",
    "rules",
    "samplers",
    "theory",
)

__all__ = ["__version__", *_HOMES, *_MODULES]  # pyright: ignore[reportUnsupportedDunderAll]  (one list, not two)


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        value = importlib.import_module(f"specnb.{name}")
    elif name in _HOMES:
        value = getattr(importlib.import_module(f"specnb.{_HOMES[name]}"), name)
    else:
        raise AttributeError(f"module 'specnb' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
