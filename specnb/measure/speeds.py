"""Predict a speedup from measured parts, decode, and compare."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from tqdm import tqdm

from specnb.arrays import like
from specnb.decoding.arguments import check_count
from specnb.decoding.batch import read_prompts
from specnb.errors import SpecnbError
from specnb.measure import timing
from specnb.measure.accepting import acceptance, check_drafting
from specnb.measure.loops import decode, timed_run
from specnb.measure.reports import Measurement, Repeat
from specnb.measure.timing import Timer, check_counts, model_of
from specnb.rules import Rule
from specnb.sampling import Sampling, sampling_or_default
from specnb.streams import MAX_SEED


def speed(
    target: Any,
    drafter: Any,
    input_ids: Any,
    *,
    batch: int = 1,
    gamma: int = 4,
    gammas: Sequence[int] = (),
    max_new_tokens: int = 64,
    sampling: Sampling | None = None,
    rule: str | Rule = "token",
    seed: int = 0,
    attention_mask: Any = None,
    backend: str | None = None,
    repeats: int = 5,
    forwards: int = 5,
    progress: bool = True,
) -> Measurement:
    """Measure acceptance, c, v and the loop's overhead, predict the speedup from them, and measure that, too.

    First all prompts are decoded for the acceptance. Then each repeat, in turn: times bare forwards; decodes plainly
    and with drafts while it watches where the time goes; and does so again, with other seeds, unwatched. What else
    the machine does falls on all alike, and what is predicted was not measured on the runs it is compared with.

    Parameters
    ----------
    target, drafter, input_ids, attention_mask, rule, backend : as in `specnb.generate`. No request stops at
        an end-of-text.
    sampling : its per-row values are one per prompt, and go with their prompts into the timed runs.
    batch : requests decoded together in the timed runs, which take the prompts in turn.
    gamma : drafts per round, at least 1. gammas: others for which v is timed as well.
    max_new_tokens : tokens that each request emits, more than gamma.
    seed : the first of the seeds, an integer.
    repeats : at least 1, after one that doesn't count. forwards: how often each one times each bare forward between
        two runs; it keeps the median.
    progress : show bars on stderr. After Ctrl-C, the acceptance so far and the complete repeats come back.

    Returns
    -------
    Measurement : `explained()` leads from the textbook's speedup to the achieved one, cause by cause.

    Raises
    ------
    SpecnbError : as `specnb.generate` does, or a count is out of range; before anything is decoded.

    Examples
    --------
    >>> import specnb
    >>> target, draft, tokenizer = specnb.load_pair()
    >>> prompts = [tokenizer(text).input_ids for text in ("ROMEO.", "[Enter the King.")]
    >>> drafter = specnb.drafters.ModelDrafter(draft)
    >>> found = speed(target, drafter, prompts, max_new_tokens=16, repeats=1, forwards=2, progress=False)
    >>> found.explained()["with"].tolist()[-1], found.achieved > 0
    ('achieved', True)
    """
    prompts = read_prompts(input_ids, attention_mask)
    if not prompts:
        raise SpecnbError("input_ids hold no prompt; expected at least one")
    gamma, max_new_tokens = check_drafting(drafter, gamma, max_new_tokens)
    batch, repeats = check_count("batch", batch, least=1), check_count("repeats", repeats, least=1)
    seed = check_count("seed", seed)
    if seed > MAX_SEED - 2 * batch * (repeats + 1):
        raise SpecnbError(f"seed is {seed}; expected room for {2 * batch * (repeats + 1)} more below 2^63")
    sampling = sampling_or_default(sampling)
    sampling.parameters(len(prompts), 1, np.zeros(0))  # or raise for values that aren't one per prompt
    _check_own(drafter)
    context = int(np.mean([len(prompt) for prompt in prompts])) + min(max_new_tokens // 2, max_new_tokens - gamma - 1)
    timed = {gamma, *check_counts("gammas", gammas, least=0)}
    timer = Timer(target, model_of(drafter), timed, {1, batch}, context, forwards)

    options = {"max_new_tokens": max_new_tokens, "sampling": sampling, "backend": backend}
    judging = options | {"gamma": gamma, "rule": rule}
    found = acceptance(target, drafter, prompts, **judging, seed=seed, progress=progress)

    samples: list[Repeat] = []
    interrupted = found.interrupted
    try:
        for r in tqdm(range(-1, -1 if interrupted else repeats), unit="repeat", disable=not progress):
            rows = [(r * batch + row) % len(prompts) for row in range(batch)]
            own = {"sampling": _of_rows(sampling, rows)}
            seeds = seed + 1 + 2 * batch * (r + 1) + np.arange(2 * batch)
            chosen = [prompts[row] for row in rows]
            each = _repeat(timer, target, drafter, chosen, seeds, options | own, judging | own)
            if r >= 0:
                samples.append(each)
            else:
                timer.samples.clear()
    except KeyboardInterrupt:
        interrupted = True
    costs = timer.costs(interrupted).first(len(samples))
    return Measurement(found, costs, batch, gamma, max_new_tokens, tuple(samples), interrupted)


def _repeat(timer: Timer, target: Any, drafter: Any, prompts: list, seeds: Any, options: dict, judging: dict) -> Repeat:
    """Time bare forwards, then both ways to decode, watched and unwatched, in turn."""
    first, second = seeds[: len(prompts)], seeds[len(prompts) :]
    loops, seconds = [], []
    for drafting, ways in ((None, options), (drafter, judging)):
        timer.tick()
        loops.append(timed_run(target, drafting, prompts, seed=first, **ways))
        timer.tick()
        begun = timing.now(target.device)
        run = decode(target, drafting, prompts, seed=second, **ways)
        seconds.append(timing.now(target.device) - begun)
    timer.close()
    return Repeat(loops[0], loops[1], (seconds[0], seconds[1]), run.stats.target_calls)


def _of_rows(sampling: Sampling, rows: list[int]) -> Sampling:
    """Return the sampling of these prompts: of a parameter with one value per prompt, their values."""
    return replace(sampling, **{name: like(value, None)[rows] for name, value in _per_prompt(sampling).items()})


def _per_prompt(sampling: Sampling) -> dict[str, Any]:
    """Return the parameters that have several values."""
    given = {name: value for name, value in vars(sampling).items() if value is not None}
    return {name: value for name, value in given.items() if like(value, None).size > 1}


def _check_own(drafter: Any) -> None:
    """Raise if the drafter's own sampling has a value per prompt: the timed runs decode other prompts in each row."""
    own = getattr(drafter, "sampling", None)
    if isinstance(own, Sampling) and (several := _per_prompt(own)):
        raise SpecnbError(
            f"the drafter's sampling has a {next(iter(several))} for each prompt, but in the timed runs a row's prompt "
            "changes; expected one value for all, or None: then it is the target's, prompt by prompt"
        )
