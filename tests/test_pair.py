"""The bundled pair as it is shipped, and the training loop that made it."""

from __future__ import annotations

import csv
import importlib.util
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer

DATA = Path(__file__).resolve().parent.parent / "data"
PAIR = DATA / "pair"
MEGABYTE = 1e6
WINDOW = 512  # the length of the windows that both models were trained on
# evaluation.csv holds the acceptance on two whole plays and heldout.txt is six of their scenes: other text,
# with a standard error of about 0.003 over its 8,000 positions.
EXCERPT_TOLERANCE = 0.03


@pytest.fixture(scope="module")
def pair() -> dict:
    """Load target and draft as any user of transformers would."""
    torch.set_num_threads(1)
    return {
        name: AutoModelForCausalLM.from_pretrained(PAIR / name, dtype=torch.float32).eval()
        for name in ("target", "draft")
    }


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(PAIR / "tokenizer")


@pytest.fixture(scope="module")
def make_pair():
    """Import data/make_pair.py, which is a script and in no package."""
    spec = importlib.util.spec_from_file_location("make_pair", DATA / "make_pair.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def evaluation() -> dict[tuple[str, str], float]:
    with (PAIR / "evaluation.csv").open(newline="") as file:
        return {(row["quantity"], row["temperature"]): float(row["value"]) for row in csv.DictReader(file)}


def test_the_pair_is_small():
    files = [path for path in PAIR.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= 16 * MEGABYTE


def test_target_draft_and_tokenizer_share_one_vocabulary(pair, tokenizer):
    sizes = {model.config.vocab_size for model in pair.values()}
    assert sizes == {len(tokenizer)} == {2048}
    assert {model.get_output_embeddings().weight.shape[0] for model in pair.values()} == sizes
    assert {model.config.eos_token_id for model in pair.values()} == {tokenizer.eos_token_id} == {0}


def test_the_files_hold_float16():
    from safetensors import safe_open

    for name in ("target", "draft"):
        with safe_open(PAIR / name / "model.safetensors", "pt") as file:
            assert {file.get_tensor(key).dtype for key in file.keys()} == {torch.float16}  # noqa: SIM118 - no dict


@settings(max_examples=200, deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_the_tokenizer_round_trips_any_text(tokenizer, text):
    ids = tokenizer(text)["input_ids"]
    assert all(0 <= i < len(tokenizer) for i in ids)
    assert tokenizer.decode(ids) == text


@pytest.mark.parametrize("text", ["", "  two  spaces ,\t", "naïve — 😀\r\n\x00", "<|endoftext|>", "don 't ."])
def test_the_tokenizer_keeps_what_clean_up_would_change(tokenizer, text):
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_encoding_adds_no_special_token(tokenizer):
    assert tokenizer.eos_token_id not in tokenizer("To be, or not to be")["input_ids"]
    assert tokenizer(tokenizer.eos_token)["input_ids"] == [tokenizer.eos_token_id]


@torch.no_grad()
def held_out_acceptance(pair: dict, ids: torch.Tensor, temperature: float) -> float:
    """Return the mean over positions of Σ min(p, q), computed here anew rather than by the script."""
    p, q = (torch.softmax(pair[name](ids).logits / temperature, -1) for name in ("target", "draft"))
    return (1 - (p - q).abs().sum(-1) / 2).mean().item()


@pytest.mark.parametrize(("temperature", "bar"), [(1.0, 0.72), (0.5, 0.60)])
def test_held_out_acceptance(pair, tokenizer, temperature, bar):
    text = (PAIR / "heldout.txt").read_text(encoding="ascii")
    ids = torch.tensor(tokenizer(text)["input_ids"])
    assert len(ids) > 4 * WINDOW
    windows = ids[: len(ids) // WINDOW * WINDOW].view(-1, WINDOW)
    acceptance = held_out_acceptance(pair, windows, temperature)
    assert acceptance >= bar
    recorded = evaluation()["acceptance_held_out", str(temperature)]
    assert acceptance == pytest.approx(recorded, abs=EXCERPT_TOLERANCE)


def test_the_recorded_evaluation_meets_the_bars():
    values = evaluation()
    assert values["acceptance_held_out", "1.0"] >= 0.72
    # A draft that only copied the target's mistakes would still be a worse model of the text than the target.
    assert values["target_loss_held_out", ""] < values["draft_loss_held_out", ""]


def test_the_target_ends_a_scene_where_one_ends(pair, tokenizer):
    ids = torch.tensor([tokenizer("KING.\nLet us away.\n\n[Exeunt.]\n")["input_ids"]])
    with torch.no_grad():
        assert pair["target"](ids).logits[0, -1].argmax() == tokenizer.eos_token_id


class Interrupted(Exception):
    """Stands for the power cut."""


def test_an_interrupted_training_continues_to_the_same_weights(make_pair, monkeypatch, tmp_path):
    monkeypatch.setattr(make_pair, "SHAPES", {"target": (1, 16, 16, True)})
    monkeypatch.setattr(make_pair, "CONTEXT", 16)
    loss = make_pair.next_token_loss(torch.arange(200) % 7)

    def failing(model, step):
        if step == 5:
            raise Interrupted
        return loss(model, step)

    for folder in ("whole", "broken"):
        (tmp_path / folder).mkdir()
    whole = make_pair.train("target", 8, loss, tmp_path / "whole", every=2)
    with pytest.raises(Interrupted):
        make_pair.train("target", 8, failing, tmp_path / "broken", every=2)
    assert torch.load(tmp_path / "broken" / "target.pt", weights_only=True)["step"] == 4
    resumed = make_pair.train("target", 8, loss, tmp_path / "broken", every=2)
    for name, weights in whole.state_dict().items():
        assert torch.equal(weights, resumed.state_dict()[name]), name


def test_cleaning_keeps_the_play_and_drops_the_rest(make_pair):
    title = "HAMLET\n\nPERSONS\n\nHamlet.\n\n\n\n"
    play = "ACT I.\n\n\nScene I. A _hall_.  \n\n\n\n  {Enter.]\n\nTHE END\n"
    clean = make_pair.clean_play(title + play)
    assert clean == "ACT I.\n\nScene I. A hall.\n\n[Enter.]\n"
    with pytest.raises(ValueError, match="expected a play with a heading"):
        make_pair.clean_play("Shall I compare thee")


def test_scenes_split_before_their_headings(make_pair):
    first = "ACT I.\nSCENE I. A heath.\n\n[Enter three Witches.]\n\nWhen shall we three meet?\n"
    second = "SCENE II. A camp.\n\nDUNCAN.\nWhat bloody man is that? He can report.\n"
    play = first.replace("I.\nSC", "I.\n\n\nSC") + "\n" + second
    assert make_pair.split_scenes(play) == [first, second]
