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
SPREAD = 32
"""Prompts from which `speed` takes the acceptance."""


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


def constrained(args: Namespace) -> list[dict[str, Any]]:
    """Measure plain and speculative decoding of JSON with the bundled pair, in one run."""
    import torch

    import specnb
    from specnb.decoding.constrained_bench import compare_constrained

    torch.set_num_threads(args.threads)
    target, draft, tokenizer = specnb.load_pair()
    settings = {"gamma": args.gamma, "max_new_tokens": args.tokens, "seed": args.seed, "repeats": args.repeats}
    settings |= {"sampling": specnb.Sampling(args.temperature)}
    rows = []
    for batch in args.batch:
        measured = compare_constrained(target, draft, tokenizer, prompts(tokenizer, batch), **settings)
        rows += [rounded({"device": device(), "temperature": args.temperature} | row) for row in measured]
    return rows


def heads(args: Namespace) -> list[dict[str, Any]]:
    """Measure the bundled heads against the bundled draft model: acceptance by position, c and speed, in one run."""
    import torch

    import specnb
    from specnb.decoding.heads_bench import compare_heads
    from specnb.drafters import HeadsDrafter

    torch.set_num_threads(args.threads)
    target, draft, tokenizer = specnb.load_pair()
    drafters = {f"{kind} heads": HeadsDrafter.bundled(kind) for kind in ("sequential", "independent")}
    settings = {"gamma": args.gamma, "max_new_tokens": args.tokens, "seed": args.seed, "repeats": args.repeats}
    settings |= {"sampling": specnb.Sampling(args.temperature), "spread": prompts(tokenizer, SPREAD)}
    rows = []
    for batch in args.batch:
        measured = compare_heads(target, draft, drafters, prompts(tokenizer, batch), **settings)
        rows += [rounded({"device": device(), "temperature": args.temperature} | row) for row in measured]
    return rows


def speed(args: Namespace) -> list[dict[str, Any]]:
    """Measure what the pair's acceptance, c, v and the loop predict, and what it achieves, cause by cause."""
    import torch

    import specnb
    from specnb import measure

    torch.set_num_threads(args.threads)
    target, draft, tokenizer = specnb.load_pair()
    rows = []
    for batch in args.batch:
        found = measure.speed(
            target,
            specnb.drafters.ModelDrafter(draft),
            prompts(tokenizer, SPREAD),
            batch=batch,
            gamma=args.gamma,
            max_new_tokens=args.tokens,
            sampling=specnb.Sampling(args.temperature),
            seed=args.seed,
            repeats=args.repeats,
        )
        shared = {"gamma": args.gamma, "threads": args.threads, "device": device(), "temperature": args.temperature}
        rows += [rounded({"batch": batch} | row | shared) for row in found.explained().to_dict("records")]
        if found.interrupted:
            break
    return rows


def copy(args: Namespace) -> list[dict[str, Any]]:
    """Measure drafters that need no second model on SmolLM2, which is asked to repeat passages of plays."""
    import torch

    from specnb.decoding import copying

    torch.set_num_threads(args.threads)
    target, tokenizer = copying.load_smollm2()
    asked = copying.copy_prompts(tokenizer, passages(3))
    found = copying.compare_copying(target, asked, gamma=args.gamma, max_new_tokens=args.tokens, repeats=args.repeats)
    return [rounded(row | {"device": device()}) for row in found]


def verify(args: Namespace) -> list[dict[str, Any]]:
    """Measure verification on the CPU, from probabilities and from logits, beside transformers' own.

    Each seed makes new logits and drafts; every way decides on the same ones in turn, several times, and the
    median of those times is averaged over the seeds. transformers verifies one request: it takes a batch in turn.
    One thread's times are CPU times, which a busy machine stretches less.
    """
    import torch

    torch.set_num_threads(args.threads)
    return [row for batch in args.batch for row in _verify_batch(args, batch)]


def _verify_batch(args: Namespace, batch: int) -> list[dict[str, Any]]:
    """Return the rows of one batch size; `ratio` is to transformers on the same batch."""
    times: dict[str, list[float]] = {}
    for seed in range(args.seed, args.seed + args.seeds):
        for name, way in _verifiers(seed, args.vocabulary, args.gamma, batch).items():
            clock = time.thread_time if args.threads == 1 else time.perf_counter
            times.setdefault(name, []).append(_median_seconds(way, args.repeats, clock))
    peer = sum(times[PEER])
    shared = {"vocabulary": args.vocabulary, "gamma": args.gamma, "threads": args.threads, "device": device()}
    return [
        rounded(
            {"batch": batch, "method": name, "microseconds": sum(t) / len(t) * 1e6, "ratio": sum(t) / peer} | shared
        )
        for name, t in times.items()
    ]


PEER = "transformers, from logits"


def _verifiers(seed: int, vocabulary: int, gamma: int, batch: int) -> dict[str, Any]:
    """Return ways to verify the same drafts of a batch."""
    import torch
    from transformers.generation.utils import _speculative_sampling

    import specnb

    generator = torch.Generator().manual_seed(seed)
    target = 2 * torch.randn(batch, gamma + 1, vocabulary, generator=generator)
    drafter = target[:, :gamma] + 0.5 * torch.randn(batch, gamma, vocabulary, generator=generator)
    p, q = target.softmax(-1), drafter.softmax(-1)
    draft = torch.stack([torch.multinomial(rows, 1, generator=generator)[:, 0] for rows in q])
    ids = torch.cat([torch.zeros(batch, 1, dtype=torch.int64), draft], 1)
    requests = [(ids[b : b + 1], drafter[b : b + 1], gamma, target[b : b + 1], False) for b in range(batch)]
    return {
        PEER: lambda: [_speculative_sampling(*request) for request in requests],
        "verify_logits, torch": lambda: specnb.verify_logits(draft, drafter, target, seed=seed),
        "softmax and verify, torch": lambda: specnb.verify(draft, drafter.softmax(-1), target.softmax(-1), seed=seed),
        "verify, torch": lambda: specnb.verify(draft, q, p, seed=seed),
    }


def _median_seconds(way: Any, repeats: int, clock: Any) -> float:
    way()
    times = []
    for _ in range(repeats):
        begun = clock()
        way()
        times.append(clock() - begun)
    return statistics.median(times)


def prompts(tokenizer: Any, batch: int) -> Any:
    """Return distinct prompts int64 [batch, PROMPT_TOKENS] from the plays that the pair wasn't trained on."""
    import torch

    from specnb.pair import data_path

    ids = tokenizer(data_path("pair/heldout.txt").read_text(encoding="utf-8"))["input_ids"]
    starts = torch.linspace(0, len(ids) - PROMPT_TOKENS, batch).long()
    return torch.tensor(ids)[starts[:, None] + torch.arange(PROMPT_TOKENS)]


def passages(number: int) -> list[str]:
    """Return passages of 14 lines, evenly spread over the plays that the pair wasn't trained on."""
    from specnb.pair import data_path

    lines = data_path("pair/heldout.txt").read_text(encoding="utf-8").splitlines()
    starts = [len(lines) * k // number for k in range(number)]
    return ["\n".join(lines[start : start + 14]).strip() for start in starts]


def device() -> str:
    """Name the processor, as the operating system does."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def rounded(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row whose measured numbers have four digits, and nothing where there is no number (None or NaN)."""
    return {k: "" if v is None or v != v else f"{v:.4g}" if isinstance(v, float) else v for k, v in row.items()}


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
