"""What must hold before the GPU script tells a time: the reference's bits, also in graphs and under a checker."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from specnb_kernels import from_logits, operators
from specnb_kernels.bench_inputs import Batch, Size, adversarial, huge_strides, ordinary, step

RULES = ("token", "block", "coupled")
SANITIZERS = ("memcheck", "racecheck")


def decide(source: str, b: Batch, rule: str = "token", filters: tuple = (None, None, None)) -> tuple:
    """Return the kernels' verdict on a batch."""
    if source == "logits":
        heat = torch.ones(len(b["draft"]), dtype=torch.float64, device=b["p"].device)
        how = [heat, *filters]
        rest = (b["lengths"], b["onehot"], b["seed"], b["position"], None, rule)
        return from_logits.verify_logits(b["draft"], b["q"], b["p"], how, how, *rest)
    function = {"token": operators.verify, "block": operators.verify_block, "coupled": operators.verify_coupled}[rule]
    return function(b["draft"], b["q"], b["p"], b["lengths"], b["onehot"], b["seed"], b["position"])


def expected(reference: ModuleType, source: str, b: Batch, rule: str, filters: tuple = (None, None, None)) -> list:
    """Return the reference's verdict, a module with NumPy's functions, as lists."""
    on_host = {k: v.cpu() if isinstance(v, torch.Tensor) else v for k, v in b.items()}
    arrays = {k: v.float().numpy() if k in "pq" else v if v is None else v.numpy() for k, v in on_host.items()}
    rest = [arrays[k] for k in ("lengths", "onehot", "seed", "position")]
    if source == "logits":
        count = len(arrays["draft"])
        ones = torch.ones(count, dtype=torch.float64)
        off = (torch.zeros(count, dtype=torch.int64), ones, torch.zeros(count, dtype=torch.float64))
        how = [ones.numpy(), *((x if f is None else f).cpu().numpy() for f, x in zip(filters, off, strict=True))]
        result = reference.verify_logits(rule, arrays["draft"], arrays["q"], arrays["p"], how, how, *rest, None)
    else:
        name = {"token": "verify", "block": "verify_block", "coupled": "verify_coupled"}[rule]
        result = getattr(reference, name)(arrays["draft"], arrays["q"], arrays["p"], *rest, None)
    return [a.tolist() for a in result]


def equality(reference: ModuleType, device: torch.device, dry: bool) -> list[str]:
    """Return the cases on which kernels and reference differ."""
    cases = ordinary(device, (5,) if dry else (5, 1000, 4097, 32000, 128256))
    cases |= adversarial(device, 9 if dry else 4097, requests=4 if dry else 8)
    cases |= huge_strides(device, 5000 if dry else 2**31 + 4096)
    wrong = []
    for name, (source, b) in cases.items():
        for rule in RULES[:1] if dry and "random" not in name else RULES:
            if [a.tolist() for a in decide(source, b, rule)] != expected(reference, source, b, rule):
                wrong.append(f"{name}, rule {rule}")
    source, b = cases["random logits 5" if dry else "random logits 32000"]
    count = len(b["draft"])
    kept = torch.full((count,), 0.9, dtype=torch.float64, device=device)
    filters = (torch.full((count,), 50, dtype=torch.int64, device=device), kept, kept / 100)
    if [a.tolist() for a in decide(source, b, "token", filters)] != expected(reference, source, b, "token", filters):
        wrong.append("filters")
    return wrong


def soak(device: torch.device, replays: int, dry: bool, left: Callable[[], float]) -> list[str]:
    """Return what went wrong when graphs captured on two streams were replayed side by side with new inputs.

    Without a device (dry) the same calls run eagerly.
    """
    size = Size(2, 2, 33, "logits", "mixed") if dry else Size(16, 4, 32000, "logits", "mixed")
    pool = [step(size, device, seed) for seed in range(2 if dry else 8)]
    right = [[a.clone() for a in decide("logits", b)] for b in pool]
    graphs = [_Graph(pool[0], dry) for _ in range(2)]
    wrong = []
    for i in range(replays):
        if left() < 0:
            return [*wrong, f"stopped for time after {i} of {replays} replays"]
        for offset, graph in enumerate(graphs):
            graph.replay(pool[(i + offset) % len(pool)])
        for offset, graph in enumerate(graphs):
            results = graph.results()
            if not all(map(torch.equal, results, right[(i + offset) % len(pool)])):
                wrong.append(f"replay {i} of graph {offset}")
    return wrong


class _Graph:
    """A verdict captured on a stream of its own, on inputs that are overwritten in place."""

    def __init__(self, b: Batch, dry: bool):
        self.inputs = {k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in b.items()}
        self.dry, self.outputs = dry, ()
        if not dry:
            self.stream, self.graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
            self.stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self.stream):
                decide("logits", self.inputs)  # compiles, which a capture can't
            torch.cuda.synchronize()
            with torch.cuda.graph(self.graph, stream=self.stream):
                self.outputs = decide("logits", self.inputs)

    def replay(self, b: Batch) -> None:
        if self.dry:
            self.outputs = decide("logits", b)
            return
        with torch.cuda.stream(self.stream):
            for k, v in b.items():
                if isinstance(v, torch.Tensor):
                    self.inputs[k].copy_(v, non_blocking=True)
            self.graph.replay()

    def results(self) -> Any:
        if not self.dry:
            self.stream.synchronize()
        return self.outputs


def sanitizer(seconds: float) -> dict[str, str]:
    """Return what compute-sanitizer says of a few verdicts, by its tools; why not, where it didn't run."""
    tool = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    if not Path(tool).exists():
        return dict.fromkeys(SANITIZERS, "not installed")
    said = {}
    for name in SANITIZERS:
        command = [tool, "--tool", name, "--error-exitcode", "9", sys.executable, "-m", "specnb_kernels.bench", "--few"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=seconds / len(SANITIZERS))
            last = (done.stdout + done.stderr).strip().splitlines()[-1:] or [""]
            said[name] = last[0] if done.returncode == 0 else f"FAILED with status {done.returncode}: {last[0]}"
        except subprocess.TimeoutExpired:
            said[name] = "stopped for time"
    return said
