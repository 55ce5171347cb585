"""Batches of logits for the kernels, and both answers: what the kernels decide, and NumPy of the probabilities."""

from __future__ import annotations

import numpy as np
import torch
from kernel_calls import DEVICE, lists
from specnb_kernels import from_logits, operators

from specnb.backends import numpy as reference

OFF = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}


def parameters(batch, **values):
    """Return temperature, top_k, top_p and min_p as arrays [batch], where not given those that change nothing."""
    return tuple(np.broadcast_to(np.asarray(values.get(k, v), type(v)), batch).copy() for k, v in OFF.items())


def processed(logits, how):
    """Return the reference's probabilities of logits, a tensor [B, R, V] of any type."""
    rows = (logits if logits.dtype == torch.float64 else logits.float()).numpy()
    each = (np.repeat(values, rows.shape[1]) for values in how)
    return reference.probabilities(rows.reshape(-1, rows.shape[2]), *each).reshape(rows.shape)


def batch(seed, B, G, V, dtype=torch.float32, spread=3.0, far=0.7, y_width=None, **values):
    """Return a batch whose drafts were drawn from the draft's processed logits; values as `parameters` takes them.

    Those that begin with y_ are the draft's alone.
    """
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(B, G + 1, V)) * spread
    y = (z[:, :G] + far * rng.normal(size=(B, G, V)))[..., :y_width]
    own = {k: v for k, v in values.items() if not k.startswith("y_")}
    theirs = own | {k[2:]: v for k, v in values.items() if k.startswith("y_")}
    b = {"y": torch.tensor(y).to(dtype), "z": torch.tensor(z).to(dtype)}
    b |= {"y_how": parameters(B, **theirs), "z_how": parameters(B, **own)}
    return drafted(b | {"lengths": None, "onehot": None, "seed": np.arange(B) + 2**40, "position": np.arange(B)}, seed)


def drafted(b, seed=0):
    """Return a batch with drafts drawn from its y as it is now, or id 0 where a row of it is no distribution."""
    u = np.random.default_rng(seed).random((*b["y"].shape[:2], 1))
    q = np.nan_to_num(processed(b["y"], b["y_how"])).astype(float)
    cumulative = q.cumsum(2)
    ids = (cumulative <= u * cumulative[..., -1:]).sum(2)
    return b | {"draft": np.where(cumulative[..., -1] > 0, ids, 0)}


def answers(b, rule="token"):
    """Return tokens, counts and status of the reference's verdict on the reference's probabilities."""
    decide = {"block": reference.verify_block, "coupled": reference.verify_coupled}.get(rule, reference.verify)
    q = None if b["y"] is None else processed(b["y"], b["y_how"])
    rest = (b["lengths"], b["onehot"], b["seed"], b["position"], b.get("uniforms"))
    return [a.tolist() for a in decide(b["draft"], q, processed(b["z"], b["z_how"]), *rest)]


def inputs(b, rule="token"):
    """Return the batch as the operator's inputs; a filter that is off for all rows is None."""
    on_device = {k: torch.from_numpy(v).to(DEVICE) if isinstance(v, np.ndarray) else v for k, v in b.items()}
    how = []
    for values in (b["y_how"], b["z_how"]):
        some = [k == "temperature" or bool((v != OFF[k]).any()) for k, v in zip(OFF, values, strict=True)]
        how.append([torch.from_numpy(v).to(DEVICE) if on else None for v, on in zip(values, some, strict=True)])
    coupled, (lengths, onehot, seeds, places) = rule == "coupled", (
        on_device[k] for k in ("lengths", "onehot", "seed", "position"))  # fmt: skip
    y, onehot = (None, None) if coupled or b["y"] is None else (b["y"].to(DEVICE), onehot)
    return [on_device["draft"], y, b["z"].to(DEVICE), lengths, onehot, seeds, places, on_device.get("uniforms"), *how,
            0, 0, 0, operators.OWN if coupled else operators.FINAL, rule]  # fmt: skip


def decide(b, rule="token", **shape):
    """Return what the kernels decide of a batch, in tiles as a GPU would cut them."""
    return lists(from_logits.launch(*inputs(b, rule), **{"stretch": 1} | shape))
