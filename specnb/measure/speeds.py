"""Predict a speedup from measured parts, decode, and compare."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tqdm import tqdm

from specnb.decoding.batch import read_prompts
from specnb.errors import SpecnbError
from specnb.measure import timing
from specnb.measure.accepting import acceptance
from specnb.measure.loops import decode, timed_run
from specnb.measure.reports import Measurement, Repeat
from specnb.measure.timing import Timer, model_of
from specnb.rules import Rule
from specnb.sampling import Sampling


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
    target, drafter, input_ids, attention_mask, sampling, rule, backend : as in `specnb.generate`. No request stops at
        an end-of-text.
    batch : requests decoded together in the timed runs, which take the prompts in turn.
    gamma : drafts per round, at least 1. gammas: others for which v is timed as well.
    max_new_tokens : tokens that each request emits, more than gamma.
    seed : the first of the seeds.
    repeats : after one that doesn't count. forwards: how often each one times each bare forward between
        two runs; it keeps the median.
    progress : show bars on stderr. After Ctrl-C, the acceptance so far and the complete repeats come back.

    Returns
    -------
    Measurement : `explained()` leads from the textbook's speedup to the achieved one, cause by cause.

    Raises
    ------
    SpecnbError : as `specnb.generate` does, or a count is out of range.

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
    options = {"max_new_tokens": max_new_tokens, "sampling": sampling, "backend": backend}
    judging = options | {"gamma": gamma, "rule": rule}
    found = acceptance(target, drafter, prompts, **judging, seed=seed, progress=progress)
    context = int(np.mean([len(prompt) for prompt in prompts])) + max_new_tokens // 2
    timer = Timer(target, model_of(drafter), {gamma, *gammas}, {1, batch}, context, forwards)

    samples: list[Repeat] = []
    interrupted = found.interrupted
    try:
        for r in tqdm(range(-1, -1 if interrupted else repeats), unit="repeat", disable=not progress):
            chosen = [prompts[(r * batch + row) % len(prompts)] for row in range(batch)]
            seeds = seed + 1 + 2 * batch * (r + 1) + np.arange(2 * batch)
            each = _repeat(timer, target, drafter, chosen, seeds, options, judging)
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
