"""What `specnb demo` shows: text with the fate of each token, acceptance, speed, and one step's exact law."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from typing import TYPE_CHECKING, Any

import numpy as np

import specnb
from specnb.decoding.bench import compare
from specnb.display import legend, strip

if TYPE_CHECKING:
    from specnb.decoding.generation import Generation, Round

SHOWN = 3  # tokens of a law that are listed


def show(args: Namespace) -> None:
    """Decode, and print everything; `args` are those of the command."""
    target, draft, tokenizer = specnb.load_pair()
    prompt = tokenizer(args.prompt, return_tensors="pt").input_ids
    options: dict[str, Any] = {"max_new_tokens": args.tokens, "sampling": specnb.Sampling(args.temperature)}
    drafter = specnb.drafters.ModelDrafter(draft)
    # The text is as long as asked: after an end of text the pair begins another scene.
    run = specnb.generate(
        target, drafter, prompt, gamma=args.gamma, seed=args.seed, eos_token_id=None, record=True, **options
    )
    color = colored(args.color)
    ids, kinds = zip(*run.trace(), strict=True)
    print(strip([tokenizer.decode([token]) for token in ids], kinds).terminal(color=color), end="\n\n")
    print(legend(color=color), end="\n\n")
    print(acceptance(run))
    if any(step.draft for step in run.rounds):
        print(one_step(run, target, draft, tokenizer, options["sampling"]))
        if args.repeats:
            print("measuring \u2026", end="\r" if sys.stderr.isatty() else "\n", file=sys.stderr)
            print(speed(compare(target, draft, prompt, gamma=args.gamma, repeats=args.repeats, **options)))


def colored(choice: str) -> bool:
    """Tell whether to colour: as asked, or on a terminal unless NO_COLOR is set."""
    if choice == "auto":
        return sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    return choice == "always"


def acceptance(run: Generation) -> str:
    """Return what was accepted, overall and at each position, beside its exact expectation."""
    stats = run.stats
    drafted, accepted, emitted, rounds = (
        int(x.sum()) for x in (stats.drafted, stats.accepted, stats.emitted, stats.rounds)
    )
    lines = [
        f"{emitted} tokens in {rounds} steps: {stats.tokens_per_round:.2f} per step, "
        f"{accepted} of {drafted} drafts accepted",
    ]
    if stats.acceptance.size and stats.expected_acceptance is not None:
        lines += [
            f"  position in the draft       {_row(np.arange(1, len(stats.acceptance) + 1), '6d')}",
            f"  accepted, if judged         {_row(stats.acceptance, '6.2f')}",
            f"  exact, \u03a3 min(p, q)           {_row(stats.expected_acceptance, '6.2f')}",
        ]
    return "\n".join(lines) + "\n"


def one_step(run: Generation, target: Any, draft: Any, tokenizer: Any, sampling: Any) -> str:
    """Return the exact law of the first step, given what was drafted."""
    first = run.rounds[0]
    q, p = rows_of(first, run, target, draft, sampling)
    lengths, correction = specnb.law(np.array(first.draft), q, p)
    lines = [
        f"the first step drafted {_texts(first.draft, tokenizer)} and accepted {first.accepted}",
        f"  drafts accepted             {_row(np.arange(len(lengths)), '6d')}",
        f"  its exact probability       {_row(lengths, '6.2f')}",
    ]
    law = correction[first.accepted]
    top = [t for t in np.argsort(-law, kind="stable")[:SHOWN] if law[t] > 0]
    tokens = ", ".join(f"{_texts([t], tokenizer)} {law[t]:.2f}" for t in top)
    kind = "bonus" if first.accepted == len(first.draft) else "correction"
    emitted = _texts(first.tokens[-1:], tokenizer)
    more = ", \u2026" if len(top) < np.count_nonzero(law) else ""
    lines += [f"  it then emitted {emitted}; the law of that {kind}: {tokens}{more}"]
    return "\n".join(lines) + "\n"


def speed(rows: list[dict[str, Any]]) -> str:
    """Return the tokens per second of each way to decode, and how they compare with plain decoding."""
    seconds = "of CPU time, 1 thread" if rows[0]["threads"] == 1 else f"{rows[0]['threads']} threads"
    lines = [f"tokens per second {seconds}, this run: median, 20th to 80th percentile, in units of {rows[0]['method']}"]
    for row in rows:
        rate, low, high, ratio = (row[name] for name in ("tokens_per_second", "low", "high", "ratio"))
        lines += [f"  {row['method']:<34} {rate:7.0f}  {low:5.0f} to {high:<5.0f}  {ratio:5.2f} \u00d7"]
    return "\n".join(
        [*lines, 'bare forwards: what the models alone would allow with the drafts of "specnb, speculative"']
    )


def rows_of(step: Round, run: Generation, target: Any, draft: Any, sampling: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return the step's q [G, V] and p [G+1, V] from one uncached forward of each model."""
    import torch

    ids = torch.cat([run.sequences[step.row, : step.position], torch.tensor(step.draft)])[None]
    with torch.inference_mode():
        rows = [
            specnb.probabilities(model(ids).logits[0, step.position - 1 :], sampling).numpy()
            for model in (draft, target)
        ]
    return rows[0][: len(step.draft)], rows[1]


def _texts(tokens: Any, tokenizer: Any) -> str:
    return " ".join(repr(tokenizer.decode([token])) for token in tokens)


def _row(values: np.ndarray, form: str) -> str:
    return "".join(format(value, form) for value in values.tolist())
