"""Calls of the kernels below the backend: in tiles as a GPU would cut them, by any number of splits, in any order."""

from __future__ import annotations

import numpy as np
import pytest
import regimes
import torch

from specnb.arrays import to_torch
from specnb.backends import numpy as reference

pytest.importorskip("triton")
from specnb_kernels import operators

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
interpreted = pytest.mark.skipif(DEVICE == "cuda", reason="changes the interpreter's order of programs")

V = 1300  # three tiles of float32 rows as the GPU would cut them, the last one not full
FUNCTIONS = {"token": "verify", "block": "verify_block", "coupled": "verify_coupled"}
TYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)

WRITTEN = ("tokens", "num_accepted", "status")
WORKSPACE = ("partials", "masses", "ratios", "chances", "findings", "tops", "sums", "forms", "buckets", "state")
SENTINEL = -77  # in memory that the kernels must write, no integer is ever that; a scale of 77 is too heavy for any row


def inputs(b, rule="token"):
    """Return a batch of regimes.py as the operator's inputs."""
    b = regimes.arguments_of(FUNCTIONS[rule], b)
    tensors = {k: to_torch(v).to(DEVICE) if isinstance(v, np.ndarray) else v for k, v in b.items()}
    seeds, seed = (tensors["seed"], 0) if isinstance(tensors["seed"], torch.Tensor) else (None, tensors["seed"] or 0)
    places, place = (tensors["position"], 0) if isinstance(b["position"], np.ndarray) else (None, b["position"])
    rows = [tensors[k] for k in ("draft", "q", "p", "lengths", "onehot")]
    purpose = operators.OWN if rule == "coupled" else operators.FINAL
    return [*rows, seeds, places, tensors["uniforms"], seed, place, 0, purpose, rule]


def lists(result):
    """Return tokens, counts and status as lists."""
    return [a.tolist() for a in result]


def decide(b, rule="token", **shape):
    """Return what the kernels decide of a batch."""
    return lists(operators.launch(*inputs(b, rule), **{"stretch": 1} | shape))


def answers(b, rule="token"):
    """Return what the reference decides."""
    return regimes.answers(reference, b, FUNCTIONS[rule])


def case(regime, width=V, rows=None):
    """Return one batch of a regime, or its first rows."""
    b = regime(np.random.default_rng(0), width)
    return {k: v[:rows] if isinstance(v, np.ndarray) else v for k, v in b.items()}


def poisoned(steps):
    """Return launches whose outputs and workspaces hold nothing but sentinels."""
    for name, tensor in ((name, tensor) for step in steps for name, tensor in step.arguments.items()):
        if name in (*WRITTEN, *WORKSPACE) and tensor is not None:
            tensor.fill_(-SENTINEL if tensor.is_floating_point() else SENTINEL)
    return steps


def run(steps):
    """Run launches in order; return what the last one wrote."""
    with operators.on(steps[0].arguments["draft"].device):
        for step in steps:
            step.run()
    return lists(steps[-1].arguments[name] for name in WRITTEN)


def types_agree(rule, p_type, q_type):
    """Tell whether rows of these types give the same verdict as their exact values in float64."""
    b = regimes.batch(np.random.default_rng(9), 3, 2, V, 2.0)
    arrays = inputs(b, rule)
    arrays[1], arrays[2] = arrays[1].to(q_type), arrays[2].to(p_type)
    exact = {"q": arrays[1].double().cpu().numpy(), "p": arrays[2].double().cpu().numpy()}
    return lists(operators.launch(*arrays, stretch=1, splits=2)) == answers(b | exact, rule)


def shuffled(monkeypatch, order):
    """Make the interpreter run a row's splits in that order; return the list of the splits it will have run."""
    from triton.runtime.interpreter import interpreter_builder

    ran, original = [], interpreter_builder.set_grid_idx

    def set_grid_idx(x, y, z):
        ran.append(order[y])
        original(x, order[y], z)

    monkeypatch.setattr(interpreter_builder, "set_grid_idx", set_grid_idx)
    return ran


def reads(monkeypatch, tensor):
    """Return a list to which the interpreter adds how many elements of a contiguous tensor each load reads."""
    from triton.runtime.interpreter import interpreter_builder

    counts, original = [], interpreter_builder.create_masked_load
    first, end = tensor.data_ptr(), tensor.data_ptr() + tensor.numel() * tensor.element_size()

    def create_masked_load(pointers, mask, *more):
        touched = pointers.data[mask.data & (pointers.data >= first) & (pointers.data < end)]
        counts.append(touched.size)
        return original(pointers, mask, *more)

    monkeypatch.setattr(interpreter_builder, "create_masked_load", create_masked_load)
    return counts
