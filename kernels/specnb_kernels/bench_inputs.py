"""Inputs of the GPU script: ordinary steps of decoding, and ones that have broken such kernels."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

Batch = dict[str, Any]


class Size(NamedTuple):
    """A workload: requests, drafts each, vocabulary, what is passed, how far drafts get."""

    batch: int
    gamma: int
    vocabulary: int
    source: str  # probabilities (float32) or logits (bfloat16)
    outcome: str  # rejected: no draft passes; mixed: about 0.7 of them do

    def least_bytes(self) -> int:
        """Return the bytes that must be read: of probabilities the deciding rows, of logits every row once."""
        if self.source == "logits":
            return 2 * self.batch * self.vocabulary * (2 * self.gamma + 1)
        return 4 * self.batch * self.vocabulary * 2


def step(size: Size, device: torch.device, seed: int = 0) -> Batch:
    """Return drafts, the draft model's rows and the target's, and seeds per request."""
    B, G, V = size[:3]
    generator = torch.Generator(device).manual_seed(seed)
    z = 3 * torch.randn(B, G + 1, V, generator=generator, device=device)
    far = 0.8 if size.outcome == "mixed" else 8.0  # 1 - TV of about 0.7, and of nothing
    y = z[:, :G] + far * torch.randn(B, G, V, generator=generator, device=device)
    # The arg-max of logits + Gumbel noise is a draw, and needs no second copy of the rows.
    noise = torch.empty(B, V, device=device)
    draft = [(y[:, i] - noise.exponential_(generator=generator).log_()).argmax(1) for i in range(G)]
    draft = torch.stack(draft, 1)
    rows = {"q": y.bfloat16(), "p": z.bfloat16()}
    if size.source == "probabilities":
        rows = {"q": y.softmax(-1), "p": z.softmax(-1)}
    if size.outcome == "rejected":
        impossible = -1e4 if size.source == "logits" else 0.0
        rows["p"][:, :G].scatter_(2, draft[..., None], impossible)
    keys = torch.arange(B, device=device)
    return rows | {"draft": draft, "lengths": None, "onehot": None, "seed": keys + 7, "position": keys * 3}


def ordinary(device: torch.device, vocabularies: tuple[int, ...]) -> dict[str, tuple[str, Batch]]:
    """Return named batches, each with what it holds."""
    return {
        f"random {source} {V}": (source, step(Size(3, 2, V, source, "mixed"), device, V))
        for V in vocabularies
        for source in ("probabilities", "logits")
    }


def adversarial(device: torch.device, vocabulary: int, requests: int = 8) -> dict[str, tuple[str, Batch]]:
    """Return batches with NaN, infinities, empty rows, equal rows, ties, impossible and foreign drafts."""
    cases = {}
    for source in ("probabilities", "logits"):
        dead = 0.0 if source == "probabilities" else float("-inf")
        b = step(Size(8, 3, vocabulary, source, "mixed"), device, 1)
        p, q, draft = b["p"], b["q"], b["draft"]
        p[0, 0, vocabulary // 2] = float("nan")
        q[1, 1, -1] = float("inf")
        p[2] = dead
        q[3] = p[3, :3]
        p[4, :, ::2], q[4, :, 1::2] = dead, dead
        draft[5] = torch.tensor([vocabulary, -1, 0], device=device)
        p[6], q[6] = p[6].clamp(max=p[6].median()), q[6].clamp(max=q[6].median())
        b = {k: v if v is None else v[:requests] for k, v in b.items()}
        ragged = {"lengths": torch.arange(requests, device=device) % 4}
        ragged["onehot"] = torch.arange(requests, device=device) % 3 == 2
        cases[f"adversarial {source}"] = (source, b)
        cases[f"ragged, some one-hot, {source}"] = (source, b | ragged)
    return cases


def huge_strides(device: torch.device, span: int) -> dict[str, tuple[str, Batch]]:
    """Return a batch whose second request lies `span` elements behind the first: beyond 2^31, 32 bits are too few."""
    b = step(Size(2, 1, 1000, "logits", "mixed"), device, 2)
    storage = torch.empty(span + 4096, dtype=torch.bfloat16, device=device)
    far = torch.as_strided(storage, (2, 2, 1000), (span, 1024, 1)).copy_(b["p"])
    return {"strides beyond 2^31": ("logits", b | {"p": far})}
