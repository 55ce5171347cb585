"""`generate` under torchrun, the target split by transformers' tensor parallelism: one text on every rank, or an error.

Run as a script, by torchrun, this file is what each rank does; the tests read what the ranks wrote.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import re
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_models import tiny
from torch import distributed

import specnb
from specnb import Sampling, SpecnbError
from specnb.decoding.cache import CachedModel
from specnb.decoding.ranks import ranks_of
from specnb.drafters import EarlyExitDrafter, ModelDrafter, NGramDrafter, PromptLookupDrafter
from specnb.pair import data_path

PROMPTS = ["ROMEO.\nWhat", "[Enter the King", "To be, or not to be, that is"]
NEW = 20
STUCK = timedelta(minutes=5)
"""After so long a rank that waits for another is taken to wait for ever; nothing here takes a tenth of that."""


def ids_of(tokenizer):
    return [tokenizer(text).input_ids for text in PROMPTS]


def runs(target, draft, split_draft):
    """Return what is decoded, by name: a drafter and options of `generate`."""
    greedy = {"sampling": Sampling(0)}
    return {
        "plain": (None, {}),
        "coupled": (ModelDrafter(draft), {"rule": "coupled"}),
        "coupled, draft split too": (ModelDrafter(split_draft), {"rule": "coupled"}),
        "coupled, early exit": (EarlyExitDrafter(2), {"rule": "coupled"}),
        "token": (ModelDrafter(draft), {}),
        "block, draft split too": (ModelDrafter(split_draft), {"rule": "block"}),
        "greedy, plain": (None, greedy),
        "greedy": (ModelDrafter(draft), greedy),
        "greedy, lookup": (PromptLookupDrafter(), greedy),
    }


def decoded(target, drafter, tokenizer, **options):
    options = {"max_new_tokens": NEW, "gamma": 3, "seed": 11, "eos_token_id": None} | options
    run = specnb.generate(target, drafter, ids_of(tokenizer), **options)
    return [run.tokens(row) for row in range(len(PROMPTS))], run.stats.accepted.tolist()


def faults(rank, draft, tokenizer):
    """Return what differs between the ranks, by name: a drafter and options of `generate`."""
    grams = NGramDrafter.train([0, 5, 9 + rank, 5, 9 + rank, 7], order=1)

    def biased(ids, scores):
        return scores + rank * torch.arange(scores.shape[1]) / 100

    return {
        "seed": (ModelDrafter(draft), {"seed": rank}),
        "budget": (None, {"max_new_tokens": NEW - rank}),
        "drafts": (grams, {"rule": "coupled"}),
        "number of drafts": (ModelDrafter(draft), {"gamma": 3 + rank}),
        "logits": (None, {"logits_processor": [biased]}),
        "last token": (None, {"logits_processor": [biased], "max_new_tokens": 1, "sampling": Sampling(50.0)}),
    }


def outcome(target, drafter, tokenizer, options):
    try:
        return decoded(target, drafter, tokenizer, **options)[0]
    except SpecnbError as error:
        return str(error)


def bits(target):
    """Return a digest of logits of forwards of several shapes."""
    digest = hashlib.sha256()
    generator = torch.Generator().manual_seed(0)
    with torch.inference_mode():
        for rows, width in ((1, 1), (1, 5), (3, 4), (4, 64)):
            ids = torch.randint(target.config.vocab_size, (rows, width), generator=generator)
            digest.update(target(input_ids=ids).logits.contiguous().numpy())
    return digest.hexdigest()


def cached_heads(target):
    """Return the shape of the cached keys of one layer."""
    cached = CachedModel(target, 2, 8)
    with torch.inference_mode():
        cached.logits(torch.tensor([[1, 2, 3], [4, 5, 6]]), np.array([3, 3]), keep=1)
    return list(cached.cache.layers[0].keys.shape)


def split(name):
    from transformers import AutoModelForCausalLM
    from transformers.distributed import DistributedConfig

    folder, config = data_path(f"pair/{name}"), DistributedConfig(tp_plan="auto")
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, distributed_config=config).eval()


def printed_by_the_readme():
    """Run README's script and return what it prints."""
    text = (Path(__file__).resolve().parent.parent / "README.md").read_text(encoding="utf-8")
    (script,) = re.findall(r"<!-- torchrun -->\n```py\n(.*?)```", text, re.DOTALL)
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        exec(script, {})
    return said.getvalue()


def of_one_rank(folder):
    """Decode everything on this rank and write what came of it."""
    distributed.init_process_group("gloo", timeout=STUCK)
    rank = distributed.get_rank()
    target, split_draft = split("target"), split("draft")
    _, draft, tokenizer = specnb.load_pair()
    found = {"size": ranks_of(target).size, "heads": cached_heads(target), "bits": bits(target), "runs": {}}
    for name, (drafter, options) in runs(target, draft, split_draft).items():
        found["runs"][name] = decoded(target, drafter, tokenizer, **options)
    found["faults"] = {
        name: outcome(target, drafter, tokenizer, options)
        for name, (drafter, options) in faults(rank, draft, tokenizer).items()
    }
    found["after the faults"] = decoded(target, None, tokenizer)
    found["README"] = printed_by_the_readme()
    Path(folder, f"{rank}.json").write_text(json.dumps(found), encoding="utf-8")
    distributed.destroy_process_group()


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """Return what each of two processes wrote that torchrun started."""
    folder = tmp_path_factory.mktemp("ranks")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*command, __file__, folder], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    return [json.loads((folder / f"{rank}.json").read_text(encoding="utf-8")) for rank in range(2)]


@pytest.fixture(scope="module")
def whole():
    """Return what one process decodes, which has the whole target."""
    target, draft, tokenizer = specnb.load_pair()
    return {
        name: decoded(target, drafter, tokenizer, **options)
        for name, (drafter, options) in runs(target, draft, draft).items()
    }


NAMES = list(runs(None, tiny(), tiny()))


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_rank_has_the_text_of_one_process(ranks, whole, name):
    (first, accepted), (second, _) = (rank["runs"][name] for rank in ranks)
    assert first == second
    assert (first, accepted) == whole[name]
    assert (sum(accepted) > 0) == ("plain" not in name)


@pytest.mark.slow
def test_coupled_equals_plain_decoding_and_greedy_equals_greedy(ranks):
    runs = {name: tokens for name, (tokens, _) in ranks[1]["runs"].items()}
    assert len({json.dumps(runs[name]) for name in NAMES if "coupled" in name or name == "plain"}) == 1
    assert len({json.dumps(runs[name]) for name in NAMES if "greedy" in name}) == 1
    assert runs["plain"] != runs["greedy"] != runs["token"]


@pytest.mark.slow
def test_the_model_is_split_and_its_logits_have_the_same_bits(ranks):
    for rank in ranks:
        assert rank["size"] == 2
        assert rank["heads"] == [2, 2, 8, 64]  # rows, half of the heads, slots, width
    assert ranks[0]["bits"] == ranks[1]["bits"]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "rank_0", "rank_1"), [
    ("seed", r"feeds \d+ in row \d, column \d+", r"feeds \d+ in row \d, column \d+"),
    ("budget", r"feeds \[3, 1\] rows and columns", r"has decoded \[3, \d+\] rows and columns"),
    ("drafts", r"feeds 9 in row 0, column \d+", r"feeds 10 in row 0, column \d+"),
    ("number of drafts", r"feeds \[3, \d+\] rows and columns", r"feeds \[3, \d+\] rows and columns"),
    ("logits", r"feeds \d+ in row 0, column 0", r"feeds \d+ in row 0, column 0"),
    ("last token", r"has decoded \d+ in row", r"has decoded \d+ in row"),
])  # fmt: skip
def test_ranks_that_differ_are_an_error_on_all_of_them(ranks, name, rank_0, rank_1):
    first, second = (rank["faults"][name] for rank in ranks)
    assert first == second
    assert re.search(f"differ: rank 0 ({rank_0}).*, and rank 1 ({rank_1}).*; expected the same prompts, seed", first)


@pytest.mark.slow
def test_after_such_an_error_the_ranks_decode_on(ranks):
    for rank in ranks:
        assert rank["after the faults"] == rank["runs"]["plain"]


@pytest.mark.slow
def test_the_script_of_the_readme_prints_one_text(ranks):
    target, draft, tokenizer = specnb.load_pair()
    prompt = tokenizer("ROMEO.\n", return_tensors="pt").input_ids
    run = specnb.generate(target, ModelDrafter(draft), prompt, max_new_tokens=40, gamma=4, seed=0)
    assert ranks[0]["README"] == ranks[1]["README"] == run.text(tokenizer)[0] + "\n"


def test_a_model_of_one_process_has_no_ranks():
    assert all(ranks_of(model) is None for model in specnb.load_pair()[:2])


if __name__ == "__main__":
    of_one_rank(sys.argv[1])
