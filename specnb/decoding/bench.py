"""Measured speed: plain and assisted decoding by transformers and by specnb, interleaved in one run."""

from __future__ import annotations

import copy
import functools
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from specnb.decoding.bare import Bare, Clock, Spent, clock_of, forwards_of
from specnb.decoding.generation import Generation
from specnb.decoding.loop import generate
from specnb.drafters import Drafter, ModelDrafter, PromptLookupDrafter
from specnb.sampling import Sampling

PLAIN, SPECULATIVE, BLOCK = "transformers, plain", "specnb, speculative", "specnb, block verification"
CONFIDENCE = 0.4
"""transformers' default: it stops drafting early at a token of lower probability."""


def compare(
    target: Any,
    draft: Any,
    input_ids: torch.Tensor,
    *,
    gamma: int = 4,
    max_new_tokens: int = 128,
    sampling: Sampling | None = None,
    seed: int = 0,
    repeats: int = 5,
) -> list[dict[str, Any]]:
    """Measure tokens per second of each way to decode the same prompts with the same settings.

    With one thread on a CPU, seconds are CPU time; else they elapse.
    Every way emits max_new_tokens per request and none stops at an end-of-text. Each repeat runs all of them in
    turn with its own seed, so that what else the machine does falls on all alike.

    Parameters
    ----------
    target, draft : transformers models in eval mode; neither is changed.
    input_ids : int64 [B, L] without padding. transformers' assisted generation and prompt lookup take part if B = 1.
    gamma : drafts per round, of the draft model and of prompt lookup. transformers is asked for the same number; with
        the draft model once without and once with its default early stop at unlikely drafts.
    sampling : scalar parameters, for both models.
    seed, repeats : the first seed, and how many are measured after one that isn't.

    Returns
    -------
    One dict per way: method, batch, gamma, tokens_per_second (median over repeats), low and high (20th and 80th
    percentile), ratio (median over repeats of the rate over that of transformers' plain decoding in the same one),
    tokens_per_round of a request (mean over repeats), kept (the share of all drafts that was accepted, those behind a
    rejection among them), overhead (milliseconds of a round outside the forwards of both models, median over repeats),
    threads; None where unknown. The last ways are the rate if the rounds of "specnb, speculative" in the same repeat
    took only their forwards, B·E/(gamma·draft + verification), with E its tokens_per_round: if no request ended before
    another, and for a batch also with as many requests as each round had. The first round reads the prompt, as
    everybody's does.
    """
    sampling = sampling or Sampling()
    B, clock = len(input_ids), clock_of(target.device)
    runs: dict[str, list[Generation]] = {}
    spent: dict[str, list[tuple[float, Spent]]] = {}

    def ours(name: str, drafter: Drafter | None, rule: str = "token") -> Callable[[int], None]:
        def decode(seed: int) -> None:
            run = generate(
                target, drafter, input_ids, max_new_tokens=max_new_tokens, gamma=gamma, sampling=sampling,
                seed=np.arange(B) + seed * B, rule=rule, eos_token_id=None,
            )  # fmt: skip
            runs.setdefault(name, []).append(run)

        return decode

    def timed(name: str, way: Callable[[int], None]) -> Callable[[int], float]:
        def decode(seed: int) -> float:
            with forwards_of(target, draft, clock) as forwards:
                begun = clock()
                way(seed)
                seconds = clock() - begun
            spent.setdefault(name, []).append((seconds, forwards))
            return seconds

        return decode

    theirs = _transformers(target, input_ids, max_new_tokens, sampling)
    ways: dict[str, Callable[[int], Any]] = {PLAIN: theirs(None, gamma, 0.0)}
    if B == 1:
        ways["transformers, assisted"] = theirs(draft, gamma, 0.0)
        ways["transformers, assisted, early stop"] = theirs(draft, gamma, CONFIDENCE)
        ways["transformers, prompt lookup"] = theirs(None, gamma, 0.0, prompt_lookup_num_tokens=gamma)
    ways["specnb, plain"] = ours("specnb, plain", None)
    ways[SPECULATIVE] = ours(SPECULATIVE, ModelDrafter(draft))
    ways[BLOCK] = ours(BLOCK, ModelDrafter(draft), "block")
    ways["specnb, prompt lookup"] = ours("specnb, prompt lookup", PromptLookupDrafter())
    ways = {name: timed(name, way) for name, way in ways.items()}

    bare_seconds = _bare_seconds(target, draft, gamma, input_ids.shape[1], max_new_tokens)
    ways["bare forwards"] = lambda seed: bare_seconds(
        {B: max_new_tokens / runs[SPECULATIVE][-1].stats.tokens_per_round}
    )
    if B > 1:
        ways["bare forwards, as requests ended"] = lambda seed: bare_seconds(_sizes(runs[SPECULATIVE][-1]))

    rates = interleaved(ways, seed, repeats, B * max_new_tokens, clock)
    plain = np.array(rates[PLAIN])
    shared = {"batch": B, "gamma": gamma, "threads": torch.get_num_threads()}
    return [
        {"method": name, **summary(rate), "ratio": float(np.median(rate / plain))}
        | _rounds(runs.get(name, [])[1:], spent.get(name, [])[1:], max_new_tokens)
        | shared
        for name, rate in rates.items()
    ]


def _rounds(runs: list[Generation], spent: list[tuple[float, Spent]], tokens: int) -> dict[str, float | None]:
    """Return what the rounds of a way came to: tokens_per_round, kept and overhead."""
    per_round = kept = overhead = None
    if spent:  # a target forward is a round
        overhead = float(np.median([(total - s.seconds) / s.rounds for total, s in spent]) * 1e3)
        per_round = float(np.mean([tokens / s.rounds for _, s in spent]))
    if runs:  # in a batch, requests have rounds of their own
        per_round = float(np.mean([run.stats.tokens_per_round for run in runs]))
        drafted = sum(int(run.stats.drafted.sum()) for run in runs)
        kept = sum(int(run.stats.accepted.sum()) for run in runs) / drafted if drafted else None
    return {"tokens_per_round": per_round, "kept": kept, "overhead": overhead}


def _sizes(run: Generation) -> dict[int, float]:
    """Return numbers of rounds by the requests that were still running."""
    return dict(Counter(Counter(round_.step for round_ in run.rounds).values()))


def interleaved(
    ways: dict[str, Callable[[int], Any]], seed: int, repeats: int, tokens: int, clock: Clock = time.perf_counter
) -> dict[str, list]:
    """Return tokens per second of each way and repeat; the first round warms up and doesn't count.

    A way is called with a seed. It may return the seconds to count; None: the whole call counts.
    """
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for repeat in tqdm(range(repeats + 1), unit="repeat", leave=False, disable=None):
        for name, way in ways.items():
            begun = clock()
            own = way(seed + repeat)
            rates[name].append(tokens / (clock() - begun if own is None else own))
    return {name: values[1:] for name, values in rates.items()}


def summary(rates: list[float]) -> dict[str, float]:
    """Return the median of rates, and their 20th and 80th percentiles."""
    low, median, high = np.percentile(rates, [20, 50, 80])
    return {"tokens_per_second": float(median), "low": float(low), "high": float(high)}


def _transformers(target: Any, input_ids: torch.Tensor, max_new_tokens: int, sampling: Sampling) -> Any:
    """Return a function of (assistant, gamma, confidence, options) that returns a way to decode by transformers."""
    config = copy.deepcopy(target.generation_config)
    config.update(
        eos_token_id=None, pad_token_id=0, max_new_tokens=max_new_tokens, do_sample=sampling.temperature > 0,
        temperature=sampling.temperature or 1.0, top_k=sampling.top_k or 0, top_p=sampling.top_p or 1.0,
        min_p=sampling.min_p,
    )  # fmt: skip

    def way(assistant: Any, gamma: int, confidence: float, **options: Any) -> Callable[[int], None]:
        own = copy.deepcopy(config)
        own.update(**options)

        def decode(seed: int) -> None:
            torch.manual_seed(seed)
            with lent(target, own), _drafting(assistant, gamma, confidence):
                run = target.generate(
                    input_ids, attention_mask=torch.ones_like(input_ids), generation_config=own,
                    assistant_model=assistant,
                )  # fmt: skip
            assert run.shape[1] == input_ids.shape[1] + max_new_tokens, "a way that emits less isn't comparable"

        return decode

    return way


@contextmanager
def lent(model: Any, config: Any) -> Iterator[None]:
    """Lend a model another generation config, from which transformers takes what a call leaves out or has as None.

    Only so does nothing end at an end-of-text, and only there does it look for the gamma of an assistant.
    """
    original = model.generation_config
    model.generation_config = config
    try:
        yield
    finally:
        model.generation_config = original


def _drafting(assistant: Any, gamma: int, confidence: float) -> Any:
    """Let an assistant draft gamma tokens, or stop at a token of lower confidence."""
    if assistant is None:
        return nullcontext()
    config = copy.deepcopy(assistant.generation_config)
    config.update(
        num_assistant_tokens=gamma, num_assistant_tokens_schedule="constant", assistant_confidence_threshold=confidence,
        eos_token_id=None,
    )  # fmt: skip
    return lent(assistant, config)


def _bare_seconds(target: Any, draft: Any, gamma: int, prompt: int, tokens: int) -> Callable[[dict[int, float]], float]:
    """Return a function from numbers of rounds, by requests, to the seconds of their forwards, made one by one.

    The first round's forwards read the prompt as well; all others stand in the middle of the tokens.
    """
    clock, context = clock_of(target.device), prompt + tokens // 2
    widths = {"first": (prompt, prompt + gamma, 0), "later": (1, gamma + 1, context)}

    @functools.cache
    def of_round(batch: int, which: str) -> Callable[[], float]:
        drafted, verified, before = widths[which]
        begin, step = Bare(draft, batch, drafted, before), Bare(draft, batch, 1, context)
        verification = Bare(target, batch, verified, before)
        forwards = [begin] * min(gamma, 1) + [step] * (gamma - 1) + [verification]
        return lambda: sum(one.seconds(clock) for one in forwards)

    def seconds(rounds: dict[int, float]) -> float:
        total, most = 0.0, max(rounds)
        for batch, number in rounds.items():
            number -= batch == most
            whole = max(1, round(number))
            total += sum(of_round(batch, "later")() for _ in range(whole)) * number / whole
        return total + of_round(most, "first")()

    return seconds
