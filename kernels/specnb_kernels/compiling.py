"""Kernels compiled for a chip that needn't be there, as launches would compile them."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch
import triton
from triton.backends.compiler import GPUTarget

from specnb_kernels import from_logits, operators
from specnb_kernels.launch import Launch

FLOATS = {torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32", torch.float64: "fp64"}


@dataclass(frozen=True)
class Configuration:
    """One way to verify: the rows' types and layout, how drafts are declared, where randomness comes from, the rule."""

    p: torch.dtype = torch.float32
    q: torch.dtype | None = torch.float32
    layout: str = "aligned"  # aligned, unaligned (odd row strides), half (q's alone are odd), strided (every other id)
    optional: bool = False  # lengths and onehot are given
    randomness: str = "seed"  # seed, seeds (a key and a position per row), uniforms
    gamma: int = 4
    width: int = 8192
    rule: str = "token"
    rows: str = "probabilities"  # or logits, or filtered: logits with top-k, top-p and min-p
    arch: int = 90  # sm_90

    def __str__(self) -> str:
        """Return a name such as "fp32 one-hot aligned seed"."""
        q = "one-hot" if self.q is None else FLOATS[self.q]
        extras = ["ragged"] * self.optional + [f"gamma {self.gamma}"] * (self.gamma != 4)
        extras += [self.rows] * (self.rows != "probabilities")
        return " ".join([FLOATS[self.p], q, self.layout, self.randomness, *extras])


PAIRS = list(itertools.product(FLOATS, [*FLOATS, None]))
BF16 = (torch.bfloat16, torch.bfloat16)
PROBABILITIES = [
    *(Configuration(p, q) for p, q in PAIRS),
    *(Configuration(p, q, "unaligned") for p in FLOATS for q in (p, None)),
    *(Configuration(layout=layout) for layout in ("half", "strided")),
    *(Configuration(randomness=randomness) for randomness in ("seeds", "uniforms")),
    *(Configuration(optional=True, randomness=randomness) for randomness in ("seed", "seeds", "uniforms")),
    Configuration(gamma=20),
    *(Configuration(p, q, rule="block") for p, q in PAIRS),
    *(Configuration(p, q, "unaligned", rule="block") for p in FLOATS for q in (p, None)),
    *(Configuration(layout=layout, rule="block") for layout in ("half", "strided")),
    *(Configuration(optional=True, randomness=randomness, rule="block") for randomness in ("seeds", "uniforms")),
    Configuration(gamma=20, rule="block"),
    *(Configuration(p, None, rule="coupled") for p in FLOATS),
    *(Configuration(q=None, layout=layout, rule="coupled") for layout in ("unaligned", "strided")),
    Configuration(q=None, optional=True, randomness="seeds", gamma=20, rule="coupled"),
]
LOGITS = [
    *(Configuration(p, p, rows="logits") for p in FLOATS),
    *(Configuration(*BF16, layout, rows="logits") for layout in ("unaligned", "strided")),
    Configuration(*BF16, optional=True, randomness="uniforms", gamma=20, rows="logits"),
    Configuration(torch.bfloat16, None, rows="logits"),
    *(Configuration(p, p, rule="block", rows="logits") for p in (torch.bfloat16, torch.float32)),
    Configuration(torch.bfloat16, None, rule="coupled", rows="logits"),
    *(Configuration(p, p, rows="filtered") for p in (torch.bfloat16, torch.float32)),
]
OTHER_CHIPS = [
    Configuration(*pair, rule=rule, rows=rows, arch=arch)
    for arch in (80, 100)
    for rule in ("token", "block")
    for pair, rows in (((torch.float32, torch.float32), "probabilities"), (BF16, "logits"))
]
CONFIGURATIONS = PROBABILITIES + LOGITS


def example(c: Configuration) -> list[Launch]:
    """Return the launches of a verdict in configuration c; of the many of a filter, those that differ in their code."""
    p_odd, q_odd = {"unaligned": (1, 1), "half": (0, 1)}.get(c.layout, (0, 0))
    step = 2 if c.layout == "strided" else 1
    span = step * c.width
    p = torch.empty(1, c.gamma + 1, span + p_odd, dtype=c.p)[..., :span:step]
    q = None if c.q is None else torch.empty(1, c.gamma, span + q_odd, dtype=c.q)[..., :span:step]
    draft, per_row = torch.zeros(1, c.gamma, dtype=torch.int64), torch.zeros(1, dtype=torch.int64)
    keys = per_row if c.randomness == "seeds" else None
    uniforms = torch.zeros(1, c.gamma + 1, dtype=torch.float64) if c.randomness == "uniforms" else None
    lengths, onehot = (per_row, per_row.bool()) if c.optional else (None, None)
    inputs = draft, q, p, lengths, onehot, keys, keys, uniforms
    if c.rows == "probabilities":
        return operators.launches(*inputs, 0, 0, 0, 2, c.rule, splits=2)
    number = torch.ones(1, dtype=torch.float64)
    how = [number, per_row, number, number] if c.rows == "filtered" else [number, None, None, None]
    steps = from_logits.launches(*inputs, how, how, 0, 0, 0, 2, c.rule, splits=2, tile_splits=2)
    return list({name(step): step for step in steps}.values())


def name(step: Launch) -> str:
    """Return a kernel's name, with what tells apart the code of one kernel's several launches in a verdict."""
    weighed, start = step.arguments.get("WEIGHED"), step.arguments.get("START")
    kind = "" if weighed is None else f" {'top-p' if weighed else 'top-k'}{' start' if start else ''}"
    filtered = " filtered" if step.kernel.__name__ == "masses_kernel" and step.arguments["FILTERED"] else ""
    return step.kernel.__name__.removesuffix("_kernel") + kind + filtered


class Target:
    """A driver without a device, so that Triton's own launch path compiles for any chip on any machine."""

    def __init__(self, arch: int = 90):
        self.arch = arch

    def get_current_target(self) -> GPUTarget:
        """Return what to compile for."""
        return GPUTarget("cuda", self.arch, 32)

    def get_current_device(self) -> int:
        """Return a number of the device, which keys Triton's cache."""
        return self.arch

    def get_current_stream(self, device: int) -> int:
        """Return a stream, on which nothing will run."""
        return 0


def compiled(c: Configuration) -> dict:
    """Return the kernels by name, as launches in configuration c would compile and specialise them."""
    steps = example(c)
    if not all(hasattr(step.kernel, "params") for step in steps):
        raise RuntimeError("TRITON_INTERPRET is set; the audit compiles, so run it in a process without it")
    triton.runtime.driver.set_active(Target(c.arch))
    return {name(step): step.kernel.warmup(grid=(1, 1), **step.arguments, **step.options) for step in steps}
