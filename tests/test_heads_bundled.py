"""The bundled heads as they are shipped, and the script that made them."""

from __future__ import annotations

import csv
import importlib
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_models import tiny

import specnb
from specnb import Sampling, cli
from specnb.bench import prompts
from specnb.decoding.heads_bench import MODEL, PLAIN
from specnb.drafters import HeadsDrafter

DATA = Path(__file__).resolve().parent.parent / "data"
KINDS = ("sequential", "independent")

BAR = 0.6
"""α of the sequential head at position 1, on held-out text at T = 1."""

EXCERPT_TOLERANCE = 0.03
"""evaluation.csv is of two whole plays and heldout.txt of six of their scenes: see tests/test_pair.py."""


@pytest.fixture(scope="module")
def pair():
    return specnb.load_pair()


@pytest.fixture(scope="module")
def held_out(pair):
    ids = torch.tensor(pair[2]((DATA / "pair" / "heldout.txt").read_text(encoding="ascii"))["input_ids"])
    return ids[: len(ids) // 512 * 512].view(-1, 512)


def recorded():
    with (DATA / "heads" / "evaluation.csv").open(newline="") as file:
        return {
            (row["heads"], row["text"], float(row["temperature"]), int(row["position"])): float(row["acceptance"])
            for row in csv.DictReader(file)
        }


def test_the_bundled_heads_are_small_and_in_float16():
    from safetensors import safe_open

    files = sorted((DATA / "heads").glob("*.safetensors"))
    assert [path.stem for path in files] == sorted(KINDS)
    assert sum(path.stat().st_size for path in files) <= 4e6
    for path in files:
        with safe_open(path, "pt") as file:
            assert {file.get_tensor(key).dtype for key in file.keys()} == {torch.float16}  # noqa: SIM118 - no dict


@torch.no_grad()
def overlap_at(pair, kind, ids, depth):
    """Return Σ min(p, q) of the draft at a depth, averaged over positions, by decoding's own path."""
    target, heads = pair[0], HeadsDrafter.bundled(kind).heads
    found = []
    for row in ids:
        states = target.model(row[None]).last_hidden_state[0]
        p = target.lm_head(states).softmax(-1)
        tokens = [row[i : len(row) - depth + i] for i in range(depth + 1)]
        rows = heads.rows(states[:-depth], tokens[1], target.model.embed_tokens, target.lm_head, depth)
        q = [rows(i, tokens[1 + i]) for i in range(depth)][-1].softmax(-1)
        found.append((1 - (p[depth:] - q).abs().sum(-1) / 2).mean().item())
    return float(np.mean(found))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("depth", [1, 3])
def test_acceptance_on_held_out_text_is_as_recorded(pair, held_out, kind, depth):
    found = overlap_at(pair, kind, held_out, depth)
    assert found == pytest.approx(recorded()[kind, "held out", 1.0, depth], abs=EXCERPT_TOLERANCE)
    if (kind, depth) == ("sequential", 1):
        assert found >= BAR


def test_the_recorded_acceptance_meets_the_bar_and_falls_with_depth():
    values = recorded()
    for text in ("held out", "by the target"):
        sequential, independent = (
            [values[kind, text, 1.0, position] for position in range(1, 5)] for kind in ("sequential", "independent")
        )
        assert sequential[0] >= BAR
        assert sequential == sorted(sequential, reverse=True)
        assert all(knows > guesses for knows, guesses in zip(sequential, independent, strict=True))


def test_drafts_are_accepted_as_often_as_their_rows_say(pair):
    """On text that the target writes itself, over some 500 judged drafts at position 1."""
    target, _, tokenizer = pair
    run = specnb.generate(
        target, HeadsDrafter.bundled(), prompts(tokenizer, 16), max_new_tokens=96, gamma=3, seed=np.arange(16),
        eos_token_id=None, record=True,
    )  # fmt: skip
    reached, expected = run.stats.reached[:, 0].sum(), run.stats.expected_acceptance[0]
    assert reached > 400
    deviation = np.sqrt(expected * (1 - expected) / reached)
    assert abs(run.stats.acceptance[0] - expected) < 4 * deviation
    assert expected >= BAR


def test_the_bundled_heads_decode_greedily_as_the_target_does(pair):
    target, _, tokenizer = pair
    ids = tokenizer("ROMEO.\n", return_tensors="pt").input_ids
    greedy = {"max_new_tokens": 30, "sampling": Sampling(0), "seed": 0}
    plain = specnb.generate(target, None, ids, **greedy)
    for kind in KINDS:
        run = specnb.generate(target, HeadsDrafter.bundled(kind), ids, gamma=4, **greedy)
        assert run.sequences.tolist() == plain.sequences.tolist()
        assert run.stats.accepted.sum() > 0


def test_the_command_compares_the_bundled_heads(capsys):
    assert cli.main(["bench", "heads", "--batch", "1", "--tokens", "6", "--repeats", "1", "--gamma", "2"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert "accepted_2" in said[0]
    assert [name in line for name, line in zip((PLAIN, MODEL, *KINDS), said[1:], strict=True)] == [True] * 4


# The script that makes them.


class Interrupted(Exception):
    """Stands for the power cut."""


@pytest.fixture
def make_heads(monkeypatch):
    """Import data/make_heads.py, which is a script beside make_pair.py and in no package."""
    monkeypatch.syspath_prepend(DATA)
    return importlib.import_module("make_heads")


@pytest.mark.parametrize("kind", KINDS)
def test_training_learns_and_an_interrupted_one_ends_with_the_same_weights(make_heads, monkeypatch, tmp_path, kind):
    monkeypatch.setattr(make_heads, "WIDE", 8)
    target = tiny().requires_grad_(False)
    ids = torch.randint(0, 12, (4, 12), generator=torch.Generator().manual_seed(0))
    steps = 60
    loss = make_heads.loss_of(target, lambda step: ids, steps)
    first = float(loss(make_heads.make_heads(kind, target), steps).detach())

    def failing(heads, step):
        if step == 41:
            raise Interrupted
        return loss(heads, step)

    for folder in ("whole", "broken"):
        (tmp_path / folder).mkdir()
    whole = make_heads.pair.fit(kind, make_heads.make_heads(kind, target), 1e-2, steps, loss, tmp_path / "whole", 20)
    with pytest.raises(Interrupted):
        make_heads.pair.fit(kind, make_heads.make_heads(kind, target), 1e-2, steps, failing, tmp_path / "broken", 20)
    again = make_heads.pair.fit(kind, make_heads.make_heads(kind, target), 1e-2, steps, loss, tmp_path / "broken", 20)
    for name, weights in whole.state_dict().items():
        assert torch.equal(weights, again.state_dict()[name]), name
    assert float(loss(whole, steps).detach()) < first - 0.02
