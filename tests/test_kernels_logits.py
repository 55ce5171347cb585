"""Kernel B: verdicts from logits, bit for bit the reference's verdicts on the reference's probabilities."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("triton")
from kernel_calls import DEVICE, TYPES, interpreted, poisoned, run, shuffled
from logit_calls import answers, batch, decide, drafted, inputs, parameters, processed
from specnb_kernels import from_logits, logits

import specnb
from specnb.backends import triton as backend

pytestmark = pytest.mark.triton

RULES = ("token", "block", "coupled")
VECTORS = json.loads((Path(__file__).parent / "vectors" / "contract.json").read_text(encoding="utf-8"))["logits"]


@pytest.mark.parametrize("V", [1, 3, 1023, 1025, 2049])
def test_any_vocabulary(V):
    b = batch(V, 2, 2, V, y_width=max(V - 1, 1))
    assert decide(b, splits=2, tile_splits=2) == answers(b)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_types_and_rules(rule, dtype):
    b = batch(1, 3, 2, 1300, dtype, temperature=[1.0, 0.0, 0.7], y_temperature=[0.5, 1.0, 0.0])
    result = decide(b, rule)
    assert result == answers(b, rule)


def test_drafts_are_accepted_and_rejected():
    """Else the tests above would compare one path of the rules alone."""
    counts = {rule: set() for rule in RULES}
    for rule in RULES:
        for seed in range(4):
            counts[rule] |= set(answers(batch(seed, 8, 3, 9), rule)[1])
    assert counts["token"] == counts["block"] == counts["coupled"] == {0, 1, 2, 3}


@pytest.mark.parametrize("y", ["soft", "ragged", "none"])
def test_which_rows_have_drafts(y):
    b = batch(2, 4, 3, 300, far=0.2)
    if y == "ragged":
        b |= {"lengths": np.array([0, 1, 2, 3]), "onehot": np.array([False, True, False, True])}
        b["draft"][3, 1] = -1
    if y == "none":
        b |= {"y": None, "uniforms": np.full((4, 4), 0.3), "seed": None}
    assert decide(b) == answers(b)


@pytest.mark.parametrize("temperature", [1e-30, 1e-3, 1e3, 1e30])
def test_extreme_temperatures(temperature):
    b = batch(3, 2, 2, 1100, temperature=temperature)
    assert decide(b) == answers(b)


def test_saturated_rows_and_ties_at_temperature_0():
    """Logits of ±30 alone: all largest ones are equal, and the lowest id is the arg-max."""
    b = batch(4, 2, 2, 1100, torch.bfloat16, temperature=[0.0, 1.0])
    b |= {"z": torch.sign(b["z"]) * 30, "y": torch.sign(b["y"]) * 30}
    b["z"][:, :, :700], b["y"][:, :, 5:] = -30, -30
    b = drafted(b)
    assert decide(b) == answers(b)


@pytest.mark.parametrize("rule", RULES)
def test_one_bad_row_is_reported_and_changes_no_other(rule):
    b = batch(5, 6, 2, 1100, far=0.1)
    clean = decide(b, rule)
    b["z"][0, 0, 1099] = -np.nan
    b["z"][1, 2] = -np.inf
    b["z"][2, 0, 3] = np.inf
    if rule != "coupled":
        b["y"][3, 0, 700] = np.nan
    b["z"][4, :, ::2] = -np.inf  # this one is a distribution
    result = decide(b, rule)
    assert result == answers(b, rule)
    assert [status & 1 for status in result[2]][:1] == [1]
    assert [a[5] for a in result] == [a[5] for a in clean]


FILTERS = {
    "top_k": {"top_k": [1, 20, 0, 5000], "y_top_k": [0, 3, 20, 1]},
    "top_p": {"top_p": [1e-12, 0.5, 1.0, 0.999], "y_top_p": [0.9, 1.0, 0.1, 0.5]},
    "min_p": {"min_p": [0.0, 0.1, 1.0, 1e-6], "y_min_p": [0.05, 0.0, 0.3, 1.0]},
    "all": {"temperature": [0.7, 1.3, 0.0, 0.1], "top_k": [0, 50, 7, 9], "top_p": [0.9, 0.8, 0.5, 1.0],
            "min_p": [0.0, 0.02, 0.1, 0.05]},
}  # fmt: skip


@pytest.mark.parametrize("name", FILTERS)
def test_filters(name):
    b = batch(6, 4, 1, 1300, torch.bfloat16, spread=2.0, **FILTERS[name])
    assert decide(b, tile_splits=2) == answers(b)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64], ids=str)
def test_filters_of_wider_types(dtype):
    b = batch(7, 2, 1, 1100, dtype, top_k=[9, 0], top_p=[0.9, 0.6], y_top_p=0.95)
    assert decide(b) == answers(b)


@pytest.mark.parametrize("rule", ["block", "coupled"])
def test_filters_by_other_rules(rule):
    b = batch(8, 2, 2, 700, torch.bfloat16, far=0.1, top_k=[40, 5], min_p=0.01)
    assert decide(b, rule) == answers(b, rule)


def test_ties_at_a_threshold_stay_together():
    """Among them the two zeros, which are equal and differ in their bits."""
    b = batch(9, 3, 1, 1100, top_k=[3, 0, 600], top_p=[1.0, 0.4, 0.9])
    b["z"], b["y"] = (b[k].clamp(-3, 1).round() * -0.0 + b[k].clamp(-3, 1).round() for k in "zy")
    b["z"][0], b["y"][0] = 0.0, -1.0
    b["z"][0, :, ::3] = -0.0
    b = drafted(b)
    assert decide(b) == answers(b)
    rows = b["z"].reshape(-1, 1100)
    kept = processed(b["z"], b["z_how"]).reshape(rows.shape)
    how = (torch.from_numpy(v.repeat(2)).to(DEVICE) for v in b["z_how"])
    assert torch.equal(backend.probabilities(rows.to(DEVICE), *how).cpu(), torch.from_numpy(kept))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("filters", [{"top_k": 3}, {"top_k": 2, "top_p": 0.9}, {"top_p": 0.9}], ids=str)
def test_thresholds_down_to_minus_infinity(dtype, filters):
    """A key that is known but for its last digits may lie below that of −inf; no threshold is a NaN for it."""
    low = -6e4 if dtype == torch.float16 else -2e30  # in float32 the key of such a logit begins with 0
    rows = torch.tensor([[0, 1, -torch.inf], [-torch.inf, 5, -torch.inf], [low, low / 2, -torch.inf]], dtype=dtype)
    z = rows[:, None].expand(3, 2, 3)
    sampling = specnb.Sampling(temperature=[1.0, 0.0, 1e4 if dtype == torch.float16 else 1e30], **filters)
    found, expected = (specnb.probabilities(z, sampling, backend=name) for name in ("triton", "numpy"))
    assert torch.equal(found, expected)
    ours, theirs = (
        specnb.verify_logits([[1]] * 3, z[:, :1], z, sampling=sampling, seed=0, backend=name)
        for name in ("triton", "numpy")
    )
    assert torch.equal(ours.tokens, theirs.tokens)
    assert not ours.status.any()


def test_views_with_steps_and_huge_strides():
    b = batch(10, 2, 2, 1030)
    z = torch.zeros(2, 3, 2060)
    z[..., ::2] = b["z"]
    y = torch.zeros(2, 1030, 2).copy_(b["y"].transpose(1, 2)).transpose(1, 2)
    assert decide(b | {"z": z[..., ::2], "y": y}) == answers(b)


@interpreted
@pytest.mark.parametrize("order", [(3, 1, 2, 0), (0, 2, 1, 3)], ids=str)
def test_any_split_may_arrive_last(monkeypatch, order):
    b = batch(11, 1, 1, 4000, torch.bfloat16, top_p=0.9)
    shuffled(monkeypatch, order)
    assert decide(b, splits=4, tile_splits=4) == answers(b)


def test_every_output_and_workspace_is_written():
    b = batch(12, 3, 2, 1300, top_k=[0, 5, 2], top_p=[0.9, 1.0, 0.5]) | {"lengths": np.array([0, 1, 2])}
    steps = from_logits.launches(*inputs(b), splits=2, tile_splits=2)
    assert run(poisoned(steps)) == answers(b)


@pytest.mark.parametrize("case", VECTORS[::3], ids=lambda c: str(c["sampling"]))
def test_golden_probabilities(case):
    row = torch.tensor([case["logits"]], dtype=torch.float32, device=DEVICE)
    sampling = {k: v for k, v in case["sampling"].items() if v is not None}
    how = (torch.from_numpy(v).to(DEVICE) for v in parameters(1, **sampling))
    got = backend.probabilities(row, *how)[0].tolist()
    assert [x.hex() for x in got] == case["probabilities"]


def test_probabilities_of_any_type_and_layout():
    rows = torch.randn(2, 2600, generator=torch.Generator().manual_seed(0)) * 4
    for x in (rows, rows.half(), rows.bfloat16(), rows[:, ::2], rows[:, 1:]):
        how = parameters(2, temperature=[0.5, 0.0])
        got = backend.probabilities(x.to(DEVICE), *(torch.from_numpy(v).to(DEVICE) for v in how))
        assert torch.equal(got.cpu(), torch.from_numpy(processed(x[:, None], how)[:, 0]))


@pytest.mark.parametrize("rule", ["token", "match", "block", "coupled"])
def test_the_public_function(rule):
    b = batch(13, 2, 2, 40, torch.bfloat16, temperature=0.8, top_p=0.9)
    how = {"sampling": specnb.Sampling(temperature=0.8, top_p=0.9), "rule": rule, "seed": 3}
    verdicts = [specnb.verify_logits(torch.tensor(b["draft"]), b["y"], b["z"], backend=name, **how)
                for name in ("triton", "torch")]  # fmt: skip
    assert verdicts[0].tokens.tolist() == verdicts[1].tokens.tolist()
    assert verdicts[0].status.tolist() == verdicts[1].status.tolist()


def test_the_operators_are_sound():
    """PyTorch's own check: the schema tells the truth about mutation and aliasing, fake shapes match."""
    b = batch(14, 2, 1, 9, top_k=3)
    torch.library.opcheck(from_logits.triton_verify_logits, tuple(inputs(b)))
    how = [torch.ones(2, dtype=torch.float64, device=DEVICE), None, None, None]
    torch.library.opcheck(from_logits.triton_probabilities, (torch.randn(2, 9, device=DEVICE), how))


@interpreted
def test_a_wrong_constant_is_caught(monkeypatch):
    """One unit in the last place of one coefficient: the comparison above isn't blind to it."""
    how = parameters(1)
    row = torch.linspace(-5, 0, 1500)[None]
    exact = torch.from_numpy(processed(row[:, None], how)[:, 0])
    on_device = [torch.from_numpy(v).to(DEVICE) for v in how]
    assert torch.equal(backend.probabilities(row, *on_device), exact)
    above = np.nextafter(np.float32(logits.C1.value), np.float32(1)).item()
    monkeypatch.setattr(logits, "C1", logits.tl.constexpr(above))
    assert not torch.equal(backend.probabilities(row, *on_device), exact)


@pytest.mark.parametrize("uniforms", [None, torch.zeros(1, 2)])
def test_coupled_drafts_take_a_seed(uniforms):
    how = (torch.ones(1, dtype=torch.float64), None, None, None)
    with pytest.raises(ValueError, match="expected a seed and uniforms=None"):
        from_logits.verify_logits(torch.zeros(1, 1, dtype=torch.int64), None, torch.ones(1, 2, 1), how, how,
                                  uniforms=uniforms, rule="coupled")  # fmt: skip
