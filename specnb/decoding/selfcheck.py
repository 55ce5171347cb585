"""Whether a model decodes from the cache as it does without: tried once, before it is trusted."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch

from specnb.decoding.cache import CachedModel
from specnb.sampling import MAX_LOGITS

MOST_NOISE, LEAST_NOISE = 1024, 16
"""Bounds of the tolerance between cached and uncached logits, in units of the dtype's epsilon times the largest
logit: another order of the same sums costs some units in 16 bits and some tens in float32."""

CONTEXT_SHARE = 0.25
"""Between those bounds: the part of what one other token at the beginning changes. In 16 bits it is the bound
that counts, since 1024 epsilons would be as much as the logits themselves. A lost or misplaced token is outside,
unless the weights are so small that context hardly matters."""

_passed: WeakKeyDictionary[Any, tuple] = WeakKeyDictionary()  # model → attention and dtype it was checked with


def self_check(model: Any) -> str:
    """Return why a model can't be decoded from its cache, or "" if it can; a model that passed isn't run again."""
    how = (model.config._attn_implementation, model.dtype)
    if _passed.get(model) == how:
        return ""
    try:
        reason = _compare(model)
    except Exception as error:  # whatever a model's code raises there, it would raise in the run
        first = str(error).strip().partition("\n")[0]
        reason = f"a forward with a length per row fails with {type(error).__name__}: {first}"
    if not reason:
        _passed[model] = how
    return reason


@torch.inference_mode()
def _compare(model: Any) -> str:
    """Compare a ragged, rolled-back, cached forward with an uncached one."""
    ids = torch.tensor([[1, 2, 3, 4, 5, 6], [3, 5, 2, 1, 4, 2]], device=model.device)
    other = torch.cat([ids[:, :1] + 1, ids[:, 1:]], 1)
    both = torch.cat([ids, other]) % model.get_input_embeddings().num_embeddings
    logits = getattr(model(input_ids=both, use_cache=False), "logits", None)
    if logits is None or logits.ndim != 3:
        return "its forward returns no logits for each token; expected one from AutoModelForCausalLM"
    if logits.shape[2] > MAX_LOGITS:
        return f"its vocabulary has {logits.shape[2]} ids; expected at most {MAX_LOGITS}"
    plain, changed = logits[:, -3:].double().chunk(2)
    cached = _cached(model, both[:2]).double()
    if not (plain.isfinite().all() and cached.isfinite().all()):
        return (
            f"its logits aren't finite in {model.dtype}; expected finite ones: are its weights NaN, or does this "
            "dtype overflow?"
        )
    error, largest = float((cached - plain).abs().max()), float(plain.abs().max())
    if not error <= _tolerance(float((changed - plain).abs().max()), torch.finfo(logits.dtype).eps * largest):
        return (
            f"after a rollback its cached logits are {error:.3g} away from uncached ones (largest {largest:.3g}), so "
            "it keeps state that can't roll back, or ignores the 4-D mask or the position ids"
        )
    return ""


def _cached(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """Return the last 3 logits of each row after a ragged forward and a rollback."""
    run = CachedModel(model, rows=2, size=7)
    # Row 0 holds 3 tokens, row 1 one; both also two that are rejected: 5 and 3 of the 5 columns count.
    first = torch.stack([ids[0, [0, 1, 2, 0, 0]], ids[1, [0, 0, 0, 1, 1]]])
    run.logits(first, np.array([5, 3]), keep=1)
    run.rollback(np.array([3, 1]))
    return run.logits(ids[:, 1:], np.array([6, 6]), keep=3)


def _tolerance(context: float, unit: float) -> float:
    return min(max(CONTEXT_SHARE * context, LEAST_NOISE * unit), MOST_NOISE * unit)
