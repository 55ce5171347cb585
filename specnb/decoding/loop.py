"""Speculative decoding of transformers models: `generate`."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from specnb import rules
from specnb.decoding.adaptive import AdaptiveGamma
from specnb.decoding.arguments import callables, check_count, check_drafter, check_switch
from specnb.decoding.batch import left_padding, read_prompts
from specnb.decoding.choosing import OVERLAPS, choose_backend
from specnb.decoding.ends import stop_string_criteria
from specnb.decoding.generation import Generation
from specnb.decoding.grammar import Constraint
from specnb.decoding.plan import Plan, rule_of
from specnb.decoding.rounds import rounds_of
from specnb.decoding.run import Run
from specnb.decoding.special import pad_id, stop_ids
from specnb.decoding.statistics import Statistics
from specnb.decoding.support import check_model
from specnb.drafters import Drafter
from specnb.errors import SpecnbError
from specnb.rules import Rule
from specnb.sampling import Sampling
from specnb.streams import STREAMS


def generate(
    target: Any,
    drafter: Drafter | None,
    input_ids: Any,
    *,
    attention_mask: Any = None,
    max_new_tokens: int,
    gamma: int | AdaptiveGamma = 5,
    sampling: Sampling | None = None,
    rule: str | Rule = "token",
    seed: Any,
    eos_token_id: int | Iterable[int] | str | None = "target",
    backend: str | None = None,
    num_return_sequences: int = 1,
    logits_processor: Iterable[Any] | None = None,
    stopping_criteria: Iterable[Any] | None = None,
    stop_strings: str | Sequence[str] | None = None,
    tokenizer: Any = None,
    streamer: Any = None,
    cache: Any = None,
    constraint: Constraint | None = None,
    progress: bool = False,
    record: bool = False,
    trace: str | Path | None = None,
) -> Generation:
    """Decode with a drafter so that the law of the output is the target's own.

    Parameters
    ----------
    target : decoder-only transformers model with full or sliding attention (eager or sdpa), in eval mode. If it is
        split by tensor parallelism, every rank makes the same call and gets the same tokens.
    drafter : one of `specnb.drafters`, or anything with its protocol; None decodes token by token, as the
        rule "coupled" does.
    input_ids : int [B, L] (or [L]), or a list of B prompts of any length.
    attention_mask : [B, L], 1 for a prompt's tokens, in one piece: padding on the left or right. None: all.
    max_new_tokens : tokens that each request emits, >= 0; fewer only if an end comes first.
    gamma : drafts per round, >= 0; fewer where a request's budget ends. Or `specnb.drafters.AdaptiveGamma`, which
        chooses it for each request from what became of its own drafts.
    sampling : from logits to p, and to q unless the drafter has its own; None is temperature 1.
    rule : "token", "block" (more accepted tokens, same law), "match", or "coupled": every token is drawn by the word
        of its own position, so that the output equals plain decoding (drafter=None) token for token at any
        temperature, whatever the drafter; fewer drafts are accepted. Or a lossy `specnb.rules.Rule`, or your own.
    seed : int (request b uses stream b of that key), or int [B]: each request its own key, and then its stream
        doesn't depend on the batch around it. 0 <= seed < 2^63.
    eos_token_id : an id or several that end a request; None never stops. "target": what the target's
        generation config, or else its config, says.
    backend : "numpy", "torch" or "triton"; None takes the fastest here. They return the same bits.
    num_return_sequences : requests made of each prompt, side by side; B below counts them all.
    logits_processor : transformers' processors, applied to the target's logits before `sampling`; drafts are drawn
        without them. One that may keep a state is called only with texts that are in the output, in order, and each
        request has a copy of its own; a function's closure can't be copied, so requests would share its state.
    stopping_criteria : transformers' criteria, asked after each token that is emitted.
    stop_strings : texts that end a request as soon as its text has one of them; they need the tokenizer.
    streamer : anything with transformers' streamer interface, or a list of B of them: each gets its request's tokens.
    cache : a transformers cache that holds the beginning of every prompt; it is copied, not changed.
    constraint : what each request has to emit, a `specnb.Grammar`: p and q are over the tokens that it admits.
    progress : show a bar on stderr.
    record : also sum the exact chance to accept at each judged position (`stats.overlap_at`); rules token, match
        and coupled.
    trace : a new folder to which each round's p and q go as they come, as safetensors with bounded memory; what is
        there can be read after any interrupt. See `specnb.rescore` and `Generation.replay`.

    Returns
    -------
    Generation : sequences, lengths, statistics and rounds. After Ctrl-C, what had been emitted.

    Raises
    ------
    SpecnbError : a model that can't be decoded here, a bad prompt, seed or budget; during the run, rows that
        are no distribution, with request and position, or ranks that differ. Models and configs are left as they were.

    Source: Leviathan, Kalman, Matias, "Fast Inference from Transformers via Speculative Decoding", ICML 2023.
    """
    begun = time.perf_counter()
    max_new_tokens = check_count("max_new_tokens", max_new_tokens)
    copies = check_count("num_return_sequences", num_return_sequences, least=1, most=STREAMS)
    gamma = gamma if isinstance(gamma, AdaptiveGamma) else check_count("gamma", gamma)
    check_drafter(drafter)
    prompts = [prompt for prompt in read_prompts(input_ids, attention_mask) for _ in range(copies)]
    check_model("target", target, max((len(prompt) for prompt in prompts), default=0) + max_new_tokens)
    rule = rule_of(rule, drafter)
    plan = Plan(
        target, drafter, prompts, max_new_tokens,
        gamma=0 if drafter is None else gamma,
        sampling=Sampling() if sampling is None else sampling,
        rule=rule,
        seed=seed,
        backend=choose_backend(backend, target.device, rule),
        stops=stop_ids(target, eos_token_id),
        processors=callables("logits_processor", logits_processor, "transformers.LogitsProcessor"),
        criteria=[
            *callables("stopping_criteria", stopping_criteria, "transformers.StoppingCriteria"),
            *stop_string_criteria(stop_strings, tokenizer),
        ],
        streamers=streamer,
        cache=cache,
        constraint=constraint,
        cache_padding=left_padding(attention_mask, len(prompts)),
        record=check_switch("record", record),
        trace=trace,
    )  # fmt: skip
    device = input_ids.device if torch.is_tensor(input_ids) else torch.device("cpu")
    return decode(plan, device=device, progress=check_switch("progress", progress), begun=begun)


def decode(plan: Plan, *, device: torch.device, progress: bool = False, begun: float | None = None) -> Generation:
    """Carry a plan out and return what came of it, its tensors on a device."""
    begun = time.perf_counter() if begun is None else begun
    if plan.record and (plan.rule.name not in OVERLAPS or rules.RULES[plan.rule.name] is not plan.rule):
        known = ", ".join(OVERLAPS)
        raise SpecnbError(f"record=True can't tell the chances of rule {plan.rule.label}; expected {known}")
    interrupted = False
    with torch.inference_mode():
        run = plan.start()
        try:
            _run_through(run, progress)
        except KeyboardInterrupt:
            interrupted = True
        finally:
            run.end()
    return _generation(plan, run, device, interrupted, begun)


def _run_through(run: Run, progress: bool) -> None:
    """Make all rounds."""
    with tqdm(total=int(run.batch.remaining.sum()), unit="token", disable=not progress) as bar:
        while run.batch.rows.size:
            bar.update(run.round())
    if run.target.ranks is not None:
        run.target.ranks.agree("has decoded", run.batch.tokens, run.batch.lengths)


def _generation(plan: Plan, run: Run, device: torch.device, interrupted: bool, begun: float) -> Generation:
    stats = Statistics.of(run.log, len(plan.prompts), run.most, plan.record)
    stats.target_calls, stats.draft_calls = run.target.calls, run.draft.calls
    stats.target_seconds, stats.draft_seconds = run.target_seconds, run.draft_seconds
    stats.close_calls = run.close_calls
    stats.committed = run.batch.lengths.copy()
    sequences, lengths, prompt_lengths = (t.to(device) for t in run.batch.padded(pad_id(plan.target)))
    gamma = plan.gamma.largest if isinstance(plan.gamma, AdaptiveGamma) else plan.gamma
    rounds = rounds_of(run.log)
    stats.seconds = time.perf_counter() - begun
    return Generation(
        sequences, lengths, prompt_lengths, stats, gamma, plan.rule, run.chooser.backend, interrupted, rounds, plan,
        None if plan.trace is None else Path(plan.trace),
    )  # fmt: skip
