"""The measurements behind the README's tables: what `specnb bench` runs and writes as CSV."""

from __future__ import annotations

import csv
import platform
import statistics
import time
from argparse import Namespace
from collections.abc import Iterable
from pathlib import Path
from typing import Any

PROMPT_TOKENS = 32


def decode(args: Namespace) -> list[dict[str, Any]]:
    """Measure decoding with the bundled pair: plain, by transformers and by specnb, in one run."""
    import torch

    import specnb
    from specnb.decoding.bench import compare

    torch.set_num_threads(args.threads)
    target, draft, tokenizer = specnb.load_pair()
    rows = []
    for batch in args.batch:
        measured = compare(
            target,
            draft,
            prompts(tokenizer, batch),
            gamma=args.gamma,
            max_new_tokens=args.tokens,
            sampling=specnb.Sampling(args.temperature),
            seed=args.seed,
            repeats=args.repeats,
        )
        rows += [rounded({"device": device(), "temperature": args.temperature} | row) for row in measured]
    return rows


def verify(args: Namespace) -> list[dict[str, Any]]:
    """Measure one verification on the CPU, from probabilities and from logits, beside transformers' own.

    Each seed makes new logits and drafts; every way decides on the same ones in turn, several times, and the
    median of those times is averaged over the seeds.
    """
    import torch

    torch.set_num_threads(args.threads)
    times: dict[str, list[float]] = {}
    for seed in range(args.seed, args.seed + args.seeds):
        for name, way in _verifiers(seed, args.vocabulary, args.gamma).items():
            times.setdefault(name, []).append(_median_seconds(way, args.repeats))
    peer = sum(times[PEER])
    shared = {"vocabulary": args.vocabulary, "gamma": args.gamma, "batch": 1, "threads": args.threads}
    shared["device"] = device()
    return [
        rounded({"method": name, "microseconds": sum(t) / len(t) * 1e6, "ratio": sum(t) / peer} | shared)
        for name, t in times.items()
    ]


PEER = "transformers, from logits"


def _verifiers(seed: int, vocabulary: int, gamma: int) -> dict[str, Any]:
    """Return ways to verify the same drafts, one request."""
    import torch
    from transformers.generation.utils import _speculative_sampling

    import specnb

    generator = torch.Generator().manual_seed(seed)
    target = 2 * torch.randn(1, gamma + 1, vocabulary, generator=generator)
    drafter = target[:, :gamma] + 0.5 * torch.randn(1, gamma, vocabulary, generator=generator)
    p, q = target.softmax(-1), drafter.softmax(-1)
    draft = torch.multinomial(q[0], 1, generator=generator).T
    ids = torch.cat([torch.zeros(1, 1, dtype=torch.int64), draft], 1)
    return {
        PEER: lambda: _speculative_sampling(ids, drafter, gamma, target, False),
        "verify, torch": lambda: specnb.verify(draft, q, p, seed=seed),
        "softmax and verify, torch": lambda: specnb.verify(draft, drafter.softmax(-1), target.softmax(-1), seed=seed),
    }


def _median_seconds(way: Any, repeats: int) -> float:
    way()
    times = []
    for _ in range(repeats):
        begun = time.perf_counter()
        way()
        times.append(time.perf_counter() - begun)
    return statistics.median(times)


def prompts(tokenizer: Any, batch: int) -> Any:
    """Return distinct prompts int64 [batch, PROMPT_TOKENS] from the plays that the pair wasn't trained on."""
    import torch

    from specnb.pair import data_path

    ids = tokenizer(data_path("pair/heldout.txt").read_text(encoding="utf-8"))["input_ids"]
    starts = torch.linspace(0, len(ids) - PROMPT_TOKENS, batch).long()
    return torch.tensor(ids)[starts[:, None] + torch.arange(PROMPT_TOKENS)]


def device() -> str:
    """Name the processor, as the operating system does."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def rounded(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row whose measured numbers have four digits, and nothing where there is no number."""
    return {k: "" if v is None else f"{v:.4g}" if isinstance(v, float) else v for k, v in row.items()}


def write(rows: Iterable[dict[str, Any]], path: Path) -> None:
    """Write rows with the same columns as a CSV file."""
    rows = list(rows)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def table(rows: list[dict[str, Any]]) -> str:
    """Return rows as aligned columns of text."""
    cells = [list(rows[0]), *([str(value) for value in row.values()] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in cells)
