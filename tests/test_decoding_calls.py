"""What `generate` accepts as arguments, and what it says about the rest."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tiny_models import ScriptedDrafter, tiny

import specnb
from specnb import SpecnbError
from specnb.drafters import ModelDrafter

BAD_CALLS = {
    r"max_new_tokens is -1; expected an integer >= 0": {"max_new_tokens": -1},
    r"max_new_tokens is True; expected an integer": {"max_new_tokens": True},
    r"gamma is 1.5; expected an integer": {"gamma": 1.5},
    r"rule 'tokn' is unknown": {"rule": "tokn"},
    r"seed is -1; expected 0 <= seed": {"seed": -1},
    r"seed is int64 \[2\]; expected one integer, or one per request: \[1\]": {"seed": [1, 2]},
    r"backend 'jax' is unknown": {"backend": "jax"},
    r"eos_token_id is 'eos'; expected an id": {"eos_token_id": "eos"},
    r"prompt 0 has id 12 at position 1; expected 0 … 11, the target's vocabulary": {"input_ids": [[3, 12]]},
    r"prompt 1 has id -1 at position 0": {"input_ids": [[3], [-1]], "seed": 0},
    r"prompt 1 has shape \[0\]; expected at least one id": {"input_ids": [[3], []]},
    r"prompt 0 holds float32; expected integer ids": {"input_ids": torch.ones(1, 2)},
    r"input_ids have shape \[1, 1, 2\]; expected \[B, L\]": {"input_ids": torch.ones(1, 1, 2, dtype=torch.int64)},
    r"attention_mask of row 0 has a hole": {
        "input_ids": torch.ones(1, 4, dtype=torch.int64),
        "attention_mask": torch.tensor([[1, 0, 1, 1]]),
    },
    r"attention_mask has shape \[1, 2\]; expected \[1, 4\]": {
        "input_ids": torch.ones(1, 4, dtype=torch.int64),
        "attention_mask": torch.ones(1, 2),
    },
    r"prompt 0 has shape \[0\]": {
        "input_ids": torch.ones(1, 4, dtype=torch.int64),
        "attention_mask": torch.zeros(1, 4),
    },
    r"attention_mask holds \[0 1 2\]; expected 1 for tokens and 0 for padding": {
        "input_ids": torch.ones(1, 4, dtype=torch.int64),
        "attention_mask": torch.tensor([[0, 1, 2, 1]]),
    },
    r"attention_mask has rows of different lengths": {
        "input_ids": torch.ones(2, 2, dtype=torch.int64),
        "attention_mask": [[1, 1], [1]],
    },
    r"input_ids are int; expected int \[B, L\]": {"input_ids": 3},
    r"input_ids are NoneType; expected": {"input_ids": None},
    r"input_ids are str; expected": {"input_ids": "text"},
    r"input_ids are dict; expected": {"input_ids": {"input_ids": [[1]]}},
    r"prompt 0 has rows of different lengths": {"input_ids": [[[1, 2], [3]]]},
    r"eos_token_id is \[\[1, 2\]\]; expected an id": {"eos_token_id": [[1, 2]]},
    r"eos_token_id is \[\[1, 2\], \[3\]\]; expected an id": {"eos_token_id": [[1, 2], [3]]},
    r"eos_token_id is 1.5; expected an id": {"eos_token_id": 1.5},
    r"sampling is 0; expected specnb.Sampling": {"sampling": 0},
    r"sampling is \{'temperature': 1\}; expected specnb.Sampling": {"sampling": {"temperature": 1}},
    r"drafter is int; expected one of specnb.drafters": {"drafter": 3},
    r"drafter is the class ModelDrafter; expected one of specnb.drafters": {"drafter": ModelDrafter},
    r"drafter is LlamaForCausalLM; expected .*, wrap it: specnb.drafters.ModelDrafter\(model\)": {"drafter": tiny()},
    r"attention_mask came with a list of prompts": {"input_ids": [[1]], "attention_mask": [[1]]},
}


@pytest.mark.parametrize(("message", "changes"), BAD_CALLS.items(), ids=lambda value: None)
def test_a_bad_call_says_what_came_and_what_is_expected(message, changes):
    arguments = {"input_ids": [[1, 2]], "max_new_tokens": 3, "gamma": 2, "seed": 0} | changes
    drafter = arguments.pop("drafter", ScriptedDrafter([0, 0], 12))
    with pytest.raises(SpecnbError, match=message):
        specnb.generate(tiny(), drafter, **arguments)


@pytest.mark.parametrize("several", [iter, set, tuple, np.array, torch.tensor], ids=lambda kind: kind.__name__)
def test_ends_of_text_may_come_in_any_collection(several):
    options = {"max_new_tokens": 30, "seed": 0}
    expected, run = (
        specnb.generate(tiny(), None, [[1, 2]], eos_token_id=ends, **options).tokens()
        for ends in ([3, 7], several([3, 7]))
    )
    assert run == expected
    assert run[-1] in (3, 7)


def test_a_huge_gamma_drafts_what_the_budget_allows():
    model, draft = tiny(), tiny(seed=1)
    huge, enough = (
        specnb.generate(model, ModelDrafter(draft), [[1, 2]], max_new_tokens=6, gamma=gamma, seed=0, record=True)
        for gamma in (2**70, 5)
    )
    assert huge.tokens() == enough.tokens()
    assert huge.gamma == 2**70
    assert huge.stats.reached.tolist() == enough.stats.reached.tolist()
    assert huge.stats.reached.shape == (1, 5)


def test_a_request_that_is_not_there_is_refused():
    run = specnb.generate(tiny(), None, [[1, 2], [3]], max_new_tokens=4, seed=0)
    assert run.tokens(-1) == run.tokens(1)
    assert run.trace(-1) == run.trace(1)
    for row in (5, 2, -3, 0.5):
        for method in (run.tokens, run.trace):
            with pytest.raises(SpecnbError, match=f"row is {row}; expected 0 … 1, one of the 2 requests"):
                method(row)


def test_read_only_seeds_and_prompts_are_fine():
    seeds, prompts = np.array([4, 5]), np.array([[1, 2], [3, 4]])
    expected = specnb.generate(tiny(), None, prompts, max_new_tokens=4, seed=seeds).sequences
    for array in (seeds, prompts):
        array.setflags(write=False)
    for backend in ("numpy", "torch"):
        run = specnb.generate(tiny(), None, prompts, max_new_tokens=4, seed=seeds, backend=backend)
        assert run.sequences.tolist() == expected.tolist()


@pytest.mark.parametrize("backend", ["numpy", "torch"])
@pytest.mark.parametrize("seed", [3, [3, 4]])
def test_a_default_device_changes_nothing(backend, seed):
    options = {"max_new_tokens": 6, "gamma": 2, "backend": backend, "seed": seed}
    models = [(tiny(), tiny(seed=1)) for _ in range(2)]
    expected, run = [], []
    for device, (target, draft), runs in zip(("cpu", "meta"), models, (expected, run), strict=True):
        with torch.device(device):
            for drafter in (None, ModelDrafter(draft)):
                runs.append(specnb.generate(target, drafter, [[1, 2, 3], [4]], **options).sequences.tolist())
    assert run == expected


def test_plain_decoding_has_no_rule_to_lose():
    with pytest.raises(SpecnbError, match="rule 'tokn' is unknown"):
        specnb.generate(tiny(), None, [[1, 2]], max_new_tokens=1, seed=0, rule="tokn")
    with pytest.raises(SpecnbError, match="is lossy and judges drafts, but drafter is None"):
        specnb.generate(tiny(), None, [[1, 2]], max_new_tokens=1, seed=0, rule=specnb.rules.lenient(0.5))
