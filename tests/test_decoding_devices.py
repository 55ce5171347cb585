"""A draft on another device than the target's: everything that crosses is moved, and the tokens are the same."""

from __future__ import annotations

import pytest
import torch
from elsewhere import DEVICE, Elsewhere
from tiny_models import tiny

import specnb
from specnb.decoding.cache import CachedModel
from specnb.drafters import EarlyExitDrafter, ModelDrafter, NGramDrafter, PromptLookupDrafter

PROMPTS = [[1, 2, 3], [4], [5, 6, 7, 8, 9]]


def decoded(target, drafter, **options):
    run = specnb.generate(
        target, drafter, PROMPTS, max_new_tokens=12, gamma=3, seed=[3, 4, 5], eos_token_id=[2], **options
    )
    return [run.tokens(row) for row in range(len(PROMPTS))]


def test_the_two_devices_cannot_be_mixed():
    with Elsewhere() as elsewhere:
        here, there = torch.ones(2), torch.ones(2).to(DEVICE)
        assert (there.device, there.is_cpu, (2 * there).device) == (DEVICE, False, DEVICE)
        assert there.cpu().numpy().tolist() == [1, 1]
        assert (there * torch.tensor(3.0))[torch.tensor([0])].tolist() == [3]
        assert elsewhere.crossings == 2
        for mixed in (lambda: here + there, lambda: torch.cat([here, there]), lambda: here[there.long()]):
            with pytest.raises(RuntimeError, match="expected all tensors to be on the same device"):
                mixed()
        with pytest.raises(TypeError, match="can't convert xpu"):
            there.numpy()


@pytest.mark.parametrize("backend", ["numpy", "torch"])
@pytest.mark.parametrize("kind", ["llama", "hybrid"])
def test_a_draft_on_another_device_drafts_the_same(kind, backend):
    expected = decoded(tiny(kind), ModelDrafter(tiny(kind, seed=1)), backend=backend)
    with Elsewhere() as elsewhere:
        drafter = ModelDrafter(elsewhere.send(tiny(kind, seed=1)))
        assert decoded(tiny(kind), drafter, backend=backend) == expected
        assert elsewhere.crossings > 12


DRAFTERS = [
    ModelDrafter(tiny(seed=1)), PromptLookupDrafter(), EarlyExitDrafter(1), NGramDrafter.train([1, 2, 3, 4, 1, 2]),
    None,
]  # fmt: skip


@pytest.mark.parametrize("drafter", DRAFTERS, ids=lambda drafter: type(drafter).__name__)
def test_a_target_on_another_device_decodes_the_same(drafter):
    expected = decoded(tiny(), drafter)
    with Elsewhere() as elsewhere:
        assert decoded(elsewhere.send(tiny()), drafter) == expected


def test_a_draft_that_is_not_fed_on_its_device_is_caught(monkeypatch):
    logits = CachedModel.logits

    def careless(self, tokens, ends, keep):
        self.device = torch.device("cpu")
        return logits(self, tokens, ends, keep)

    monkeypatch.setattr(CachedModel, "logits", careless)
    with Elsewhere() as elsewhere, pytest.raises((specnb.SpecnbError, RuntimeError), match="on the same device"):
        decoded(tiny(), ModelDrafter(elsewhere.send(tiny(seed=1))))
