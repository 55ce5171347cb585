"""Speculative decoding: draft, verify all drafts in one forward, commit, roll back, repeat.

Invariant: the target's cache holds committed − 1 tokens of each request. The one that it lacks is fed first in
the next forward, together with the drafts.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from specnb import rules
from specnb.decoding.batch import Batch, read_prompts
from specnb.decoding.cache import CachedModel
from specnb.decoding.choosing import OVERLAPS, Chooser, choose_backend
from specnb.decoding.generation import Generation, Logged, Statistics, rounds_of
from specnb.decoding.special import pad_id, stop_ids
from specnb.decoding.support import check_model
from specnb.drafters import Drafter, DraftRun, NoDrafts
from specnb.errors import SpecnbError
from specnb.rules import Rule
from specnb.sampling import Sampling
from specnb.streams import keys


def generate(
    target: Any,
    drafter: Drafter | None,
    input_ids: Any,
    *,
    attention_mask: Any = None,
    max_new_tokens: int,
    gamma: int = 5,
    sampling: Sampling | None = None,
    rule: str | Rule = "token",
    seed: Any,
    eos_token_id: int | Iterable[int] | str | None = "target",
    backend: str | None = None,
    progress: bool = False,
    record: bool = False,
) -> Generation:
    """Decode with a drafter so that the law of the output is the target's own.

    Parameters
    ----------
    target : decoder-only transformers model with full attention (eager or sdpa), in eval mode.
    drafter : `specnb.drafters.ModelDrafter`, or anything with its protocol; None decodes token by token, as the
        rule "coupled" does.
    input_ids : int [B, L] (or [L]), or a list of B prompts of any length.
    attention_mask : [B, L], 1 for a prompt's tokens, in one piece: padding on the left or right. None: all.
    max_new_tokens : tokens that each request emits, >= 0; fewer only if an end-of-text comes first.
    gamma : drafts per round, >= 0; fewer where a request's budget ends.
    sampling : from logits to p, and to q unless the drafter has its own; None is temperature 1.
    rule : "token", "block" (more accepted tokens, same law), "match", or "coupled": every token is drawn by the word
        of its own position, so that the output equals plain decoding (drafter=None) token for token at any
        temperature, whatever the drafter; fewer drafts are accepted. Or a lossy `specnb.rules.Rule`, or your own.
    seed : int (request b uses stream b of that key), or int [B]: each request its own key, and then its stream
        doesn't depend on the batch around it. 0 <= seed < 2^63.
    eos_token_id : an id or several that end a request; None never stops. "target": what the target's
        generation config, or else its config, says.
    backend : "numpy", "torch" or "triton"; None takes the fastest here. They return the same bits.
    progress : show a bar on stderr.
    record : also sum the exact chance to accept at each judged position (`stats.overlap_at`); rules token, match
        and coupled.

    Returns
    -------
    Generation : sequences, lengths, statistics and rounds. After Ctrl-C, what had been emitted.

    Raises
    ------
    SpecnbError : a model that can't be decoded here, a bad prompt, seed or budget; during the run, rows that
        are no distribution, with request and position. Models and configs are left as they were.

    Source: Leviathan, Kalman, Matias, "Fast Inference from Transformers via Speculative Decoding", ICML 2023.
    """
    begun = time.perf_counter()
    max_new_tokens, gamma = _count("max_new_tokens", max_new_tokens), _count("gamma", gamma)
    _check_drafter(drafter)
    batch = Batch(read_prompts(input_ids, attention_mask), max_new_tokens)
    check_model("target", target, batch.size)
    batch.check_ids(target.get_input_embeddings().num_embeddings)
    rule = _rule_of(rule, drafter)
    if record and (rule.name not in OVERLAPS or rules.RULES[rule.name] is not rule):
        raise SpecnbError(f"record=True can't tell the chances of rule {rule.label}; expected {', '.join(OVERLAPS)}")
    B = len(batch.lengths)
    seed, _ = keys(seed, 0, B, batch.lengths)
    sampling = Sampling() if sampling is None else sampling
    backend = choose_backend(backend, target.device, rule)
    chooser = Chooser(backend, target.device, seed, sampling, B, batch.rows, rule)
    gamma = 0 if drafter is None else gamma
    most = min(gamma, max(max_new_tokens - 1, 0))  # no round drafts more, whatever gamma is
    stops = stop_ids(target, eos_token_id)

    interrupted = False
    with torch.inference_mode(), tqdm(total=B * max_new_tokens, unit="token", disable=not progress) as bar:
        cached = CachedModel(target, len(batch.rows), batch.size)
        draft = drafter.start(batch, chooser, most) if drafter is not None and gamma else NoDrafts(chooser)
        run = Run(batch, cached, draft, chooser, most, stops, record)
        try:
            while batch.rows.size:
                bar.update(_round(run))
        except KeyboardInterrupt:
            interrupted = True

    stats = Statistics.of(run.log, B, most, record)
    stats.target_calls, stats.draft_calls = cached.calls, draft.calls
    device = input_ids.device if torch.is_tensor(input_ids) else torch.device("cpu")
    sequences, lengths, prompt_lengths = (t.to(device) for t in batch.padded(pad_id(target)))
    rounds = rounds_of(run.log)
    stats.seconds = time.perf_counter() - begun
    return Generation(sequences, lengths, prompt_lengths, stats, gamma, rule, chooser.backend, interrupted, rounds)


@dataclass
class Run:
    """What a run consists of, and the log of its rounds."""

    batch: Batch
    target: CachedModel
    draft: DraftRun
    chooser: Chooser
    gamma: int
    stops: np.ndarray
    record: bool
    log: list[Logged] = field(default_factory=list)


def _round(run: Run) -> int:
    """Draft, verify, commit and roll back once for every request that runs; return how much was emitted."""
    batch, target, chooser = run.batch, run.target, run.chooser
    start = batch.live_lengths
    proposal = run.draft.propose(batch, np.minimum(run.gamma, batch.remaining - 1))
    drafted = proposal.tokens.shape[1]

    known = torch.from_numpy(batch.since(target.seen)).to(target.device)
    fed = torch.cat([known, chooser.tensor(proposal.tokens)], 1)
    p = chooser.probabilities(target.logits(fed, start + drafted, keep=drafted + 1))
    decision = chooser.verify(proposal, p, start)
    decision.check()

    counts, ended = _until_stop(decision.tokens, decision.accepted + 1, run.stops)
    overlap = chooser.overlap(proposal, p) if run.record else None
    run.log.append(Logged(decision, counts, ended, overlap))
    batch.commit(decision.tokens, counts)

    cached = batch.live_lengths - 1
    target.rollback(cached)
    run.draft.rollback(cached)
    on = np.flatnonzero(~ended & (batch.remaining > 0))
    if len(on) < len(batch.rows):
        for part in (batch, target, run.draft, chooser):
            part.keep(on)
    return int(counts.sum())


def _until_stop(tokens: np.ndarray, counts: np.ndarray, stops: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Cut each row's counts[r] tokens behind its first stop; return the counts and which rows ended there."""
    if not stops.size:
        return counts, np.zeros(len(counts), bool)
    stop = (tokens[:, :, None] == stops).any(2) & (np.arange(tokens.shape[1]) < counts[:, None])
    ended = stop.any(1)
    return np.where(ended, stop.argmax(1) + 1, counts), ended


def _check_drafter(drafter: Any) -> None:
    if drafter is None or (callable(getattr(drafter, "start", None)) and not isinstance(drafter, type)):
        return
    what = f"the class {drafter.__name__}" if isinstance(drafter, type) else type(drafter).__name__
    hint = "wrap it: specnb.drafters.ModelDrafter(model)" if isinstance(drafter, torch.nn.Module) else "or None"
    raise SpecnbError(f"drafter is {what}; expected one of specnb.drafters, {hint}")


def _rule_of(rule: str | Rule, drafter: Drafter | None) -> Rule:
    """Return the rule that judges the drafts; without a drafter each token is the target's own draw."""
    rule = rules.get(rule)
    if drafter is None and not rule.lossless:
        raise SpecnbError(f"rule {rule.label} is lossy and judges drafts, but drafter is None; expected a drafter")
    return rules.get("coupled") if drafter is None else rule


def _count(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 0:
        raise SpecnbError(f"{name} is {value!r}; expected an integer >= 0")
    return int(value)
