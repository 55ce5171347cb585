"""The comparison runs every way to decode, reports what it says, and changes no model."""

from __future__ import annotations

import pytest
import torch
from tiny_models import tiny

from specnb import Sampling
from specnb.decoding.bench import compare

OURS = {"specnb, plain": 1, "specnb, prompt lookup": 3, "specnb, speculative": 3, "specnb, block verification": 3}
"""And tokens per round at most."""
WAYS = ["transformers, plain", *OURS, "bare forwards"]
TOGETHER = ["bare forwards, as requests ended"]
ALONE = ["transformers, assisted", "transformers, assisted, early stop", "transformers, prompt lookup"]


@pytest.mark.parametrize("batch", [1, 2])
def test_every_way_is_measured_on_the_same_prompts(batch):
    target, draft = tiny(), tiny(seed=1)
    target.generation_config.eos_token_id = draft.generation_config.eos_token_id = list(range(12))  # none may end
    configs = [(model.config.to_dict(), model.generation_config.to_dict()) for model in (target, draft)]
    rows = compare(
        target, draft, torch.ones(batch, 3, dtype=torch.int64), gamma=2, max_new_tokens=6, sampling=Sampling(0.7),
        repeats=2,
    )  # fmt: skip
    assert sorted(row["method"] for row in rows) == sorted(WAYS + (ALONE if batch == 1 else TOGETHER))
    for row in rows:
        assert 0 < row["low"] <= row["tokens_per_second"] <= row["high"]
        assert (row["batch"], row["gamma"], row["threads"]) == (batch, 2, torch.get_num_threads())
        bare = row["method"].startswith("bare")
        assert row["overhead"] is None if bare else row["overhead"] > 0
        assert row["kept"] is None or 0 <= row["kept"] <= 1
    rounds = {row["method"]: row["tokens_per_round"] for row in rows if row["method"] in OURS}
    assert all(1 <= rounds[name] <= most for name, most in OURS.items())
    assert configs == [(model.config.to_dict(), model.generation_config.to_dict()) for model in (target, draft)]
    assert not any(model._forward_hooks or model._forward_pre_hooks for model in (target, draft))
