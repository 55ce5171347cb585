"""Measured: heads on the target against a draft model, by acceptance at each position, c and speed, in one run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from specnb.decoding.bare import clock_of, forward_seconds
from specnb.decoding.bench import interleaved, summary
from specnb.decoding.loop import generate
from specnb.drafters import HeadsDrafter, ModelDrafter
from specnb.sampling import Sampling

PLAIN, MODEL = "plain", "draft model"
COST_REPEATS = 20
IN_A_ROW = 10
"""Forwards that follow one another when c is measured: what they read is then still in a cache, as for any draft but
the first of a round."""


def compare_heads(
    target: Any,
    draft: Any,
    heads: dict[str, HeadsDrafter],
    input_ids: torch.Tensor,
    *,
    spread: torch.Tensor,
    gamma: int = 4,
    max_new_tokens: int = 128,
    sampling: Sampling | None = None,
    seed: int = 0,
    repeats: int = 5,
) -> list[dict[str, Any]]:
    """Measure plain decoding, a draft model and heads with the same settings.

    Parameters
    ----------
    target, draft : transformers models in eval mode. heads : drafters by the name of their row.
    input_ids : int64 [B, L] without padding, the prompts whose decoding is timed.
    spread : int64 [N, L], the prompts on which acceptance is measured, in a run of its own without a clock.
    gamma, sampling, max_new_tokens : as in `specnb.generate`; nothing stops at an end-of-text.
    seed, repeats : the first seed, and how many are measured after one that isn't; ways take turns in each.

    Returns
    -------
    One dict per way: method, batch, tokens_per_second (median over repeats), low and high (20th and 80th percentile),
    tokens_per_round, c (bare seconds of one draft, LM head included, in bare forwards of the target with one token per
    row), alpha_1 … (mean of Σ min(p, q) over the rounds that reached the position), accepted_1 … (share of their drafts
    that was accepted), gamma, threads. None where there is no draft.
    """
    drafters: dict[str, Any] = {PLAIN: None, MODEL: ModelDrafter(draft)} | heads
    options: dict[str, Any] = {"max_new_tokens": max_new_tokens, "gamma": gamma, "sampling": sampling}

    def way(drafter: Any, prompts: torch.Tensor, seed: int, record: bool = False) -> Any:
        seeds = np.arange(len(prompts)) + seed * len(prompts)
        return generate(target, drafter, prompts, seed=seeds, eos_token_id=None, record=record, **options).stats

    def timed(drafter: Any) -> Callable[[int], None]:
        def decode(seed: int) -> None:
            way(drafter, input_ids, seed)

        return decode

    ways = {name: timed(drafter) for name, drafter in drafters.items()}
    rates = interleaved(ways, seed, repeats, len(input_ids) * max_new_tokens, clock_of(target.device))
    costs = _costs(target, draft, heads, len(input_ids), gamma, input_ids.shape[1] + max_new_tokens // 2)
    shared = {"gamma": gamma, "threads": torch.get_num_threads()}
    rows = []
    for name, drafter in drafters.items():
        row = {"method": name, "batch": len(input_ids), **summary(rates[name])}
        stats = None if drafter is None else way(drafter, spread, seed, record=True)
        rows.append(row | _acceptance(stats, gamma) | {"c": costs.get(name)} | shared)
    return rows


def _acceptance(stats: Any, gamma: int) -> dict[str, float | None]:
    """Return tokens per round, and acceptance at each position, exact and counted."""
    exact, counted = ([None] * gamma,) * 2 if stats is None else (stats.expected_acceptance, stats.acceptance)
    found = {"tokens_per_round": 1.0 if stats is None else stats.tokens_per_round}
    for name, values in (("alpha", exact), ("accepted", counted)):
        found |= {f"{name}_{i + 1}": None if v is None else float(v) for i, v in enumerate(values)}
    return found


def _costs(
    target: Any, draft: Any, heads: dict[str, HeadsDrafter], batch: int, gamma: int, context: int
) -> dict[str, float]:
    """Return c of each way to draft: its time in its fastest repeat over the target's in the target's fastest.

    What else the machine does takes these forwards out of the processor's caches, and only stretches them. One thread's
    times are CPU times.
    """
    clock = clock_of(target.device)
    fastest = dict.fromkeys((PLAIN, MODEL, *heads), float("inf"))
    for _ in range(COST_REPEATS):
        times = {
            name: forward_seconds(model, batch, 1, context, IN_A_ROW, clock)
            for name, model in ((PLAIN, target), (MODEL, draft))
        }
        times |= {name: head_seconds(target, drafter, batch, gamma, IN_A_ROW, clock) for name, drafter in heads.items()}
        fastest = {name: min(seconds, times[name]) for name, seconds in fastest.items()}
    return {name: fastest[name] / fastest[PLAIN] for name in (MODEL, *heads)}


@torch.inference_mode()
def head_seconds(
    target: Any, drafter: HeadsDrafter, batch: int, gamma: int, repeats: int, clock: Callable[[], float]
) -> float:
    """Return the median time of one of gamma drafts of a round, in seconds: state to state to logits, no drawing."""
    embed, read = target.get_input_embeddings(), target.get_output_embeddings()
    state = torch.ones(batch, drafter.heads.width, device=target.device, dtype=target.dtype)
    token = torch.zeros(batch, dtype=torch.int64, device=target.device)
    times = []
    for _ in range(repeats):
        begun = clock()
        rows = drafter.heads.rows(state, token, embed, read, gamma)
        for i in range(gamma):
            rows(i, token)
        times.append((clock() - begun) / gamma)
    return float(np.median(times))
