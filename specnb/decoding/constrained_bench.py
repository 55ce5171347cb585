"""Measured speed under a constraint: plain and speculative decoding of the same JSON, interleaved in one run."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from specnb.decoding.grammar import Grammar
from specnb.decoding.loop import generate
from specnb.drafters import ModelDrafter
from specnb.sampling import Sampling

SPEECH: dict[str, Any] = {
    "type": "object",
    "properties": {
        "act": {"type": "integer", "minimum": 1, "maximum": 5},
        "speaker": {"enum": ["ROMEO", "JULIET", "NURSE"]},
        "lines": {"type": "array", "items": {"type": "string", "maxLength": 48}, "minItems": 4, "maxItems": 4},
    },
    "required": ["act", "speaker", "lines"],
    "additionalProperties": False,
}
"""What the texts are: some ninety tokens of the bundled pair, two thirds of them free."""

PLAIN, SPECULATIVE, FREE = "constrained, plain", "constrained, speculative", "free, speculative"


def compare_constrained(
    target: Any,
    draft: Any,
    tokenizer: Any,
    input_ids: torch.Tensor,
    *,
    gamma: int = 4,
    max_new_tokens: int = 200,
    sampling: Sampling | None = None,
    seed: int = 0,
    repeats: int = 5,
) -> list[dict[str, Any]]:
    """Measure tokens per second of plain and of speculative decoding under the schema `SPEECH`, and without it.

    Parameters
    ----------
    target, draft, tokenizer : models in eval mode, and the tokenizer of both.
    input_ids : int64 [B, L] without padding. max_new_tokens : the most that a request emits; texts end before.
    gamma, sampling : as in `specnb.generate`.
    seed, repeats : the first seed, and how many are measured after one that isn't. Each repeat runs every way in
        turn, with seeds of its own.

    Returns
    -------
    One dict per way: method, batch, gamma, tokens_per_second (median over repeats), low and high (20th and 80th
    percentile), ratio (of the median to that of constrained plain decoding), tokens_per_round, threads.
    """
    grammar = Grammar.json_schema(SPEECH, tokenizer)
    drafter, B = ModelDrafter(draft), len(input_ids)
    settings: dict[str, Any] = {"max_new_tokens": max_new_tokens, "gamma": gamma, "sampling": sampling}
    ways: dict[str, Callable[[Any], Any]] = {
        PLAIN: lambda seeds: generate(target, None, input_ids, seed=seeds, constraint=grammar, **settings),
        SPECULATIVE: lambda seeds: generate(target, drafter, input_ids, seed=seeds, constraint=grammar, **settings),
        FREE: lambda seeds: generate(target, drafter, input_ids, seed=seeds, **settings),
    }
    rates: dict[str, list[float]] = {name: [] for name in ways}
    rounds: dict[str, list[float]] = {name: [] for name in ways}
    for repeat in range(repeats + 1):
        for name, way in ways.items():
            begun = time.perf_counter()
            run = way(np.arange(B) + B * (seed + repeat))
            rates[name].append(int(run.stats.emitted.sum()) / (time.perf_counter() - begun))
            rounds[name].append(run.stats.tokens_per_round)
    reference = float(np.median(rates[PLAIN][1:]))
    shared = {"batch": B, "gamma": gamma, "threads": torch.get_num_threads()}
    return [
        {"method": name, **_summary(rates[name][1:], reference), "tokens_per_round": float(np.mean(rounds[name][1:]))}
        | shared
        for name in ways
    ]


def _summary(rates: list[float], reference: float) -> dict[str, float]:
    low, median, high = (float(rate) for rate in np.percentile(rates, [20, 50, 80]))
    return {"tokens_per_second": median, "low": low, "high": high, "ratio": median / reference}
