"""The cache with a length per row gives the logits of plain forwards, whatever was fed and forgotten before."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tiny_models import tiny, uncached

from specnb.decoding.cache import CachedModel

NOISE = 2e-5
"""Logits here are around 3; the same float32 sums in another order were seen to differ by at most 4e-6."""


def fed_at_random(model, rng, rounds=8, rows=3, size=40):
    """Feed random tokens, forget some at random, and yield cached and uncached logits of what is kept."""
    run = CachedModel(model, rows, size)
    texts = [rng.integers(0, 12, rng.integers(1, 7)) for _ in range(rows)]
    with torch.inference_mode():
        for _ in range(rounds):
            ends = np.array([len(text) for text in texts])
            width = int((ends - run.seen).max())
            fed = np.zeros((rows, width), np.int64)
            for row, text in enumerate(texts):
                new = text[run.seen[row] :]
                fed[row, width - len(new) :] = new
            keep = int(min(ends - run.seen))
            logits = run.logits(torch.from_numpy(fed), ends, keep)
            for row, text in enumerate(texts):
                yield logits[row], uncached(model, text)[-keep:]
            kept = np.maximum(ends - rng.integers(0, 4, rows), 1)
            run.rollback(kept)
            texts = [
                np.append(text[:k], rng.integers(0, 12, rng.integers(1, 4)))
                for text, k in zip(texts, kept, strict=True)
            ]


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("kind", ["llama", "qwen2", "mistral", "gpt2", "window", "hybrid"])
def test_cached_logits_equal_uncached_ones_after_any_rollback(kind, attention):
    model = tiny(kind, attention=attention)
    for cached, plain in fed_at_random(model, np.random.default_rng(1)):
        assert float((cached - plain).abs().max()) < NOISE


def test_a_boolean_mask_under_eager_attention_is_caught(monkeypatch):
    """Eager attention adds it as 0 and 1: the mutant that an additive mask prevents."""
    mask = CachedModel._mask
    monkeypatch.setattr(CachedModel, "_mask", lambda self, positions: mask(self, positions) == 0)
    pairs = list(fed_at_random(tiny(attention="eager"), np.random.default_rng(1)))
    assert max(float((cached - plain).abs().max()) for cached, plain in pairs) > 0.1


def test_rows_that_leave_do_not_disturb_those_that_stay():
    model, run = tiny(), None
    rng = np.random.default_rng(2)
    texts = rng.integers(0, 12, (4, 9))
    run = CachedModel(model, 4, 16)
    with torch.inference_mode():
        run.logits(torch.from_numpy(texts[:, :6]), np.full(4, 6), keep=1)
        run.rollback(np.array([6, 3, 5, 4]))
        run.keep(np.array([3, 1]))
        logits = run.logits(torch.from_numpy(texts[[3, 1], 3:9]), np.full(2, 9), keep=5)
    for row, text in enumerate(texts[[3, 1]]):
        assert float((logits[row] - uncached(model, text)[-5:]).abs().max()) < NOISE


def test_nothing_is_copied_when_drafts_are_rejected():
    run = CachedModel(tiny(), 1, 30)
    with torch.inference_mode():
        run.logits(torch.arange(10)[None], np.array([10]), keep=1)
        keys = run.cache.layers[0].keys
        run.rollback(np.array([4]))
        run.logits(torch.arange(3)[None], np.array([7]), keep=1)
    assert run.cache.layers[0].keys is keys
    assert keys.shape[2] == 30
