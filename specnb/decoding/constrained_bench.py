"""Measured speed under a constraint: plain and speculative decoding of the same JSON, interleaved in one run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from specnb.decoding.bare import clock_of
from specnb.decoding.bench import interleaved, summary
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
"""What the texts are: about a hundred tokens of the bundled pair, two thirds of them free."""

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
    input_ids : int64 [B, L] without padding. max_new_tokens : the most that a request emits: JSON mostly ends before,
        and what is free doesn't.
    gamma, sampling : as in `specnb.generate`.
    seed, repeats : the first seed, and how many are measured after one that isn't. Each repeat runs every way in
        turn, with seeds of its own.

    Returns
    -------
    One dict per way: method, batch, gamma, tokens_per_second (median over repeats), low and high (20th and 80th
    percentile), ratio (median over repeats of the rate over that of constrained plain decoding in the same
    one), tokens_per_round, threads.
    """
    grammar, B, clock = Grammar.json_schema(SPEECH, tokenizer), len(input_ids), clock_of(target.device)
    found: dict[str, list[float]] = {}

    def way(name: str, drafter: Any, **more: Any) -> Callable[[int], float]:
        def decode(seed: int) -> float:
            begun = clock()
            run = generate(
                target, drafter, input_ids, max_new_tokens=max_new_tokens, gamma=gamma, sampling=sampling,
                seed=np.arange(B) + B * seed, **more,
            )  # fmt: skip
            found.setdefault(name, []).append(run.stats.tokens_per_round)
            return (clock() - begun) / int(run.stats.emitted.sum())

        return decode

    drafter = ModelDrafter(draft)
    ways = {
        PLAIN: way(PLAIN, None, constraint=grammar),
        SPECULATIVE: way(SPECULATIVE, drafter, constraint=grammar),
        FREE: way(FREE, drafter, eos_token_id=None),
    }
    rates = interleaved(ways, seed, repeats, 1, clock)
    plain = np.array(rates[PLAIN])
    shared = {"batch": B, "gamma": gamma, "threads": torch.get_num_threads()}
    return [
        {"method": name, **summary(rate), "ratio": float(np.median(rate / plain))}
        | {"tokens_per_round": float(np.mean(found[name][1:]))}
        | shared
        for name, rate in rates.items()
    ]
