"""Pages hold what the per-row cache holds: the same logits on the same run, and rejections that move integers."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch
from tiny_models import tiny
from transformers import LogitsProcessor

import specnb
from specnb import SpecnbError
from specnb.decoding.paging import Moved, PagedModel, Pages
from specnb.drafters import EarlyExitDrafter, ModelDrafter

PROMPTS = [[3], [5, 2], [1, 2, 3, 1, 2], list(range(12))]


def decoded(kind="llama", drafter=None, **options):
    options = {"max_new_tokens": 20, "gamma": 4, "seed": 0, "eos_token_id": [4]} | options
    return specnb.generate(tiny(kind), drafter or ModelDrafter(tiny(seed=1)), PROMPTS, **options)


usual = functools.cache(decoded)


@pytest.mark.parametrize("kind", ["llama", "gpt2", "window", "hybrid"])
def test_logits_are_bit_for_bit_those_of_the_per_row_cache(kind):
    run = usual(kind)
    assert run.stats.accepted.sum() < run.stats.drafted.sum()
    for block_size in (1, 4, 16):
        assert specnb.paged(run, block_size).difference == 0


def test_a_round_is_a_line_with_its_lengths_and_its_table():
    run = usual("llama")
    frame = specnb.paged(run, 4).to_frame()
    assert len(frame) == len(run.rounds)
    for round_, (_, line) in zip(run.rounds, frame.iterrows(), strict=True):
        assert (line["round"], line.request) == (round_.step, round_.row)
        assert line.length == round_.position + len(round_.tokens) - 1  # committed − 1
        assert line.fed >= line.length
        assert len(line.blocks) == -(-line.length // 4)
    taken = frame[frame["round"] == 1].blocks.sum()
    assert len(set(taken)) == len(taken), "no block belongs to two requests"


def test_nothing_moves_on_rejection():
    paged = specnb.paged(usual("llama"), 2)
    frame = paged.to_frame()
    assert (frame.fed - frame.length).sum() > 20
    assert frame.freed.sum() > 5
    assert paged.moved == 0
    assert repr(paged).endswith("difference=0, moved=0 bytes)")


def test_a_rejection_that_copies_is_measured(monkeypatch):
    """The mutant makes the pool anew without what was rejected."""
    rollback = PagedModel.rollback

    def copying(self, lengths):
        rollback(self, lengths)
        for layer in self.cache.layers:
            layer.keys = layer.keys.clone()

    monkeypatch.setattr(PagedModel, "rollback", copying)
    assert specnb.paged(usual("llama"), 4).moved > 1000


def test_a_table_in_the_wrong_order_is_noticed(monkeypatch):
    """The mutant swaps two blocks of a row, as a table that was rolled back wrongly does."""
    places = Pages.places

    def swapped(self, slots):
        honest, self.table = self.table, self.table[:, ::-1] if slots.shape[1] > 8 else self.table
        found = places(self, slots)
        self.table = honest
        return found

    monkeypatch.setattr(Pages, "places", swapped)
    assert specnb.paged(usual("llama"), 4).difference > 0.01


def test_rows_that_leave_give_their_blocks_back_without_a_copy():
    pages = PagedModel(tiny(), 3, 16, 4)
    with torch.inference_mode():
        pages.logits(torch.tensor([[1, 2, 3, 4, 5]] * 3), np.array([5, 5, 5]), keep=1)
        pool = pages.cache.layers[0].keys
        before = pool.clone()
        index = torch.tensor([0, 2])
        with Moved() as moved:
            pages.cache.batch_select_indices(index)
            pages.pages.keep(np.array([0, 2]))
        assert moved.bytes == 0
    assert pages.cache.layers[0].keys is pool
    assert torch.equal(pool, before)
    assert pages.pages.used == 4
    assert sorted(pages.pages.free)[:2] == [3, 4]


def test_pages_take_fewer_blocks_than_rows_of_full_length():
    paged = specnb.paged(decoded(max_new_tokens=40), 4)
    assert paged.peak < paged.reserved


def test_every_block_is_somebodys_or_free():
    pages, random = Pages(5, 64, 4), np.random.default_rng(0)
    for _ in range(200):
        pages.reserve(np.minimum(pages.lengths + random.integers(0, 9, len(pages.table)), 64))
        pages.rollback(np.maximum(pages.lengths - random.integers(0, 9, len(pages.table)), 0))
        held = pages.table[pages.table != 0].tolist()
        assert sorted(held + pages.free) == list(range(1, 5 * 16 + 1))
        assert ((pages.table != 0).sum(1) == -(-pages.lengths // 4)).all()
    pages.keep(np.array([1, 3]))
    assert sorted(pages.table[pages.table != 0].tolist() + pages.free) == list(range(1, 5 * 16 + 1))


def constrained(drafter):
    target, _, tokenizer = specnb.load_pair()
    constraint = specnb.Grammar.regex("[a-z]+", tokenizer)
    return specnb.generate(target, drafter, [[1, 2]], max_new_tokens=6, gamma=2, seed=0, constraint=constraint)


class Kept(LogitsProcessor):
    def __call__(self, ids, scores):
        return scores


@pytest.mark.parametrize(("run", "block_size", "message"), [
    (lambda: usual("llama"), 0, "block_size is 0; expected an integer >= 1"),
    (lambda: decoded(logits_processor=[Kept()]), 4, "can't be made again: it had processors"),
    (lambda: decoded(drafter=EarlyExitDrafter(1)), 4, "the drafter uses the target's own cache"),
    (lambda: constrained(EarlyExitDrafter(1)), 4, "the drafter uses the target's own cache"),
])  # fmt: skip
def test_what_cannot_be_paged_says_why(run, block_size, message):
    with pytest.raises(SpecnbError, match=message):
        specnb.paged(run(), block_size)
