"""What the GPU script compares the kernels with, in the same run: each a function of a batch, or why there is none."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import ModuleType

import torch

from specnb_kernels.bench_gate import decide
from specnb_kernels.bench_inputs import Batch, Size

Way = Callable[[Batch], object]


def kernels(size: Size) -> Way:
    """Return the kernels themselves."""
    return lambda b: decide(size.source, b)


def eager(backend: ModuleType, size: Size) -> Way:
    """Return a module with the functions of specnb's torch backend, run eagerly."""
    rest = ("lengths", "onehot", "seed", "position")
    if size.source == "probabilities":
        return lambda b: backend.verify(b["draft"], b["q"], b["p"], *(b[k] for k in rest), None)

    def from_logits(b):
        ones = torch.ones(size.batch, dtype=torch.float64, device=b["p"].device)
        off = (ones, torch.zeros_like(ones, dtype=torch.int64), ones, torch.zeros_like(ones))
        return backend.verify_logits("token", b["draft"], b["q"], b["p"], off, off, *(b[k] for k in rest), None)

    return from_logits


def compiled(backend: ModuleType, size: Size) -> Way:
    """Return the same behind torch.compile, which mustn't fuse the contract's arithmetic and gains little."""
    return torch.compile(eager(backend, size))


def transformers_loop(size: Size) -> Way:
    """Return transformers' own speculative sampling, a row at a time as it must be called."""
    sampling = importlib.import_module("transformers.generation.utils")._speculative_sampling

    def loop(b):
        y, z = (b["q"], b["p"]) if size.source == "logits" else (b["q"].log(), b["p"].log())
        for i in range(size.batch):
            ids = torch.cat([b["draft"][i : i + 1, :1], b["draft"][i : i + 1]], 1)
            sampling(ids, y[i : i + 1].float(), size.gamma, z[i : i + 1].float(), False)

    return loop


def flashinfer(size: Size) -> Way:
    """Return FlashInfer's chain sampler, on probabilities; from logits with a softmax of both models before it."""
    sampler = importlib.import_module("flashinfer.sampling").chain_speculative_sampling

    def chain(b):
        q, p = (x.softmax(-1, dtype=torch.float32) if size.source == "logits" else x for x in (b["q"], b["p"]))
        return sampler(q, b["draft"].int(), p)

    return chain


def vllm(size: Size) -> Way:
    """Return vLLM's rejection sampler with the target's rows processed as it wants them."""
    module = importlib.import_module("vllm.v1.sample.rejection_sampler")
    metadata = importlib.import_module("vllm.v1.sample.metadata").SamplingMetadata
    names = metadata.__dataclass_fields__
    B, G, V = size[:3]

    def sample(b):
        device = b["p"].device
        heat = torch.ones(B, device=device)
        values = {"temperature": heat, "all_greedy": False, "all_random": True, "generators": {}}
        how = metadata(**{k: values.get(k) for k in names})
        counts = torch.arange(1, B + 1, device=device, dtype=torch.int32) * G
        q, p = (x.softmax(-1, dtype=torch.float32) if size.source == "logits" else x for x in (b["q"], b["p"]))
        bonus = torch.multinomial(p[:, -1], 1).int()
        return module.rejection_sample(b["draft"].int().reshape(-1), [G] * B, G, counts, q.reshape(-1, V),
                                       p[:, :G].reshape(-1, V).contiguous(), bonus, how)  # fmt: skip

    return sample


def ways(size: Size, backend: ModuleType | None, dry: bool) -> dict[str, Callable[[], Way]]:
    """Return by name how to make each way that suits a size; one that can't be made raises, and is reported."""
    chosen: dict[str, Callable[[], Way]] = {"specnb kernels": lambda: kernels(size)}
    if backend is not None and size.batch <= 64:
        chosen["specnb torch, eager"] = lambda: eager(backend, size)
        if size.batch in (1, 64) and not dry:
            chosen["specnb torch, compiled"] = lambda: compiled(backend, size)
    if size.batch <= 8:
        chosen["transformers, row loop"] = lambda: transformers_loop(size)
    chosen["FlashInfer, chain"] = lambda: flashinfer(size)
    chosen["vLLM, rejection sampler"] = lambda: vllm(size)
    return chosen
