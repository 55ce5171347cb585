"""Make the heads that draft for the bundled target: a sequential one, and independent ones.

    python data/make_heads.py --cache CACHE --work WORK

reads the pair in `data/pair/`, fetches its corpus into CACHE, trains in WORK and writes `data/heads/`. Training
leaves checkpoints in WORK, so the same command continues where an interrupted one stopped. To begin afresh, empty WORK.
"""

from __future__ import annotations

import csv
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import make_pair as pair
import torch
from torch import Tensor
from torch.nn import functional
from transformers import AutoTokenizer, LlamaForCausalLM

from specnb.drafters.heads_modules import Heads, IndependentHeads, SequentialHead, read_heads, save_heads

HERE = Path(__file__).parent
DEPTH = 4  # drafts that the heads are trained for; the sequential head makes more if it is asked to
WIDE = 512  # of the sequential head's feed-forward layer
REACHED = 0.7  # a deeper draft counts less, since the ones before it have to be accepted
PEAK_RATE = 2e-3
BATCH, LENGTH = 4, 256  # windows of a step
SEEDS = {"sequential": 5, "independent": 6, "evaluation": 7}
Draws = Callable[[int], Tensor]  # the windows of a step


def make_heads(kind: str, target: LlamaForCausalLM) -> Heads:
    """Return untrained heads of a kind, whose states are on the scale of the target's."""
    torch.manual_seed(SEEDS[kind])
    width = target.config.hidden_size
    if kind == "independent":
        heads = IndependentHeads(width, DEPTH)
        torch.nn.init.zeros_(heads.lift.weight)  # each begins as the LM head alone
        torch.nn.init.zeros_(heads.lift.bias)
        return heads
    head = SequentialHead(width, WIDE)
    head.scale.data.copy_(target.model.norm.weight.data)
    return head


def random(name: str, step: int = 0) -> torch.Generator:
    """Return the random numbers of one step, so that a resumed run draws what an unbroken one would."""
    return torch.Generator().manual_seed(SEEDS[name] * pair.STEPS_PER_SEED + step)


def along(target: LlamaForCausalLM, heads: Heads, ids: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Return the target's logits [B, L, V], and those of the drafts at each depth d, [B, L − d, V].

    Column i of depth d is for the same token as column i + d of the target's.
    """
    with torch.no_grad():
        states, embedded = target.model(ids, use_cache=False).last_hidden_state, target.model.embed_tokens(ids)
        p = target.lm_head(states).float()
    return p, [target.lm_head(drafted).float() for drafted in heads.along(states, embedded, DEPTH)]


def loss_of(target: LlamaForCausalLM, draws: Draws, steps: int) -> Callable[[Any, int], Tensor]:
    """Return the loss of heads against the target's distribution at T = 1, averaged over the depths.

    It is KL(p || q) for a third of the steps, then the chance of rejection, 1 - Σ min(p, q), for the reason that
    `make_pair` gives. The drafts are the tokens of the text itself.
    """

    def loss(heads: Any, step: int) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            p, drafted = along(target, heads, draws(step))
        total = p.new_zeros(())
        for d, q in enumerate(drafted, 1):
            if step < steps // 3:
                terms = functional.kl_div(q.log_softmax(-1), p[:, d:].softmax(-1), reduction="none").sum(-1)
            else:
                terms = 1 - pair.acceptance(p[:, d:], q, 1.0)
            total = total + REACHED ** (d - 1) * terms.mean()
        return total / sum(REACHED**d for d in range(DEPTH))

    return loss


@torch.no_grad()
def quality(target: LlamaForCausalLM, heads: Heads, ids: Tensor, temperature: float) -> list[float]:
    """Return Σ min(p, q) at each depth, averaged over the positions of windows [N, L]."""
    batches = []
    for batch in ids.split(8):
        p, drafted = along(target, heads, batch)
        batches.append([float(pair.acceptance(p[:, d:], q, temperature).mean()) for d, q in enumerate(drafted, 1)])
    return [statistics.fmean(values) for values in zip(*batches, strict=True)]


def evaluate(out: Path, target: LlamaForCausalLM, held_out: Tensor) -> None:
    """Measure the shipped files, in float32, and write evaluation.csv."""
    whole = held_out[: len(held_out) // pair.CONTEXT * pair.CONTEXT].view(-1, pair.CONTEXT)
    with (out / "evaluation.csv").open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["heads", "text", "temperature", "position", "acceptance"])
        for temperature in pair.TEMPERATURES:
            prompts = pair.windows(held_out, 16, 16, random("evaluation"))
            written = pair.sample(target, prompts, temperature, random("evaluation", 1))
            for text, ids in {"held out": whole, "by the target": written}.items():
                for kind in ("sequential", "independent"):
                    found = quality(target, read_heads(out / f"{kind}.safetensors"), ids, temperature)
                    for position, value in enumerate(found, 1):
                        table.writerow([kind, text, temperature, position, f"{value:.4f}"])


def main() -> None:
    """Run all stages."""
    args = pair.options(
        __doc__.splitlines()[0], HERE / "heads", threads=1,
        sequential_steps=(900, "steps of the sequential head"),
        independent_steps=(400, "steps of the independent ones"),
    )  # fmt: skip
    plays = pair.read_plays(pair.fetch_corpus(args.cache))
    tokenizer = AutoTokenizer.from_pretrained(HERE / "pair" / "tokenizer")
    target = LlamaForCausalLM.from_pretrained(HERE / "pair" / "target", dtype=torch.float32)
    target.eval().requires_grad_(False)
    training = [scene for name, scenes in plays.items() if name not in pair.HELD_OUT for scene in scenes]
    stream = pair.encode(tokenizer, training)
    for kind, steps in (("sequential", args.sequential_steps), ("independent", args.independent_steps)):

        def draws(step: int, kind: str = kind) -> Tensor:
            return pair.windows(stream, BATCH, LENGTH, random(kind, step))

        loss = loss_of(target, draws, steps)
        heads = pair.fit(kind, make_heads(kind, target), PEAK_RATE, steps, loss, args.work, args.save_every)
        save_heads(heads, args.out / f"{kind}.safetensors")
        (args.out / f"{kind}.safetensors").chmod(0o644)
    evaluate(args.out, target, pair.encode(tokenizer, [scene for name in pair.HELD_OUT for scene in plays[name]]))


if __name__ == "__main__":
    main()
