"""From logits to distributions: the contract on both backends, and agreement with transformers' warpers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import MinPLogitsWarper, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

import specnb
from specnb import Sampling, SpecnbError
from specnb.backends import torch_words

# Relative error of the contract's exp2 (1.0e-7), of float32 logits times scale (up to 40 · 2^-24) and of one rounding.
PROCESSED_TV = 1e-6

LOGITS = np.random.default_rng(11).normal(size=(6, 2500)).astype(np.float32) * 3

SETTINGS = [
    {},
    {"temperature": 0.3},
    {"temperature": 1e-3},
    {"temperature": 1e3},
    {"top_k": 40},
    {"top_p": 0.9},
    {"min_p": 0.02},
    {"temperature": 0.7, "top_k": 50, "top_p": 0.8, "min_p": 0.05},
]


def warped(logits, temperature=1.0, top_k=None, top_p=None, min_p=None):
    """Return transformers' distribution, float64, in its order: temperature, top-k, top-p, min-p."""
    scores = torch.from_numpy(logits).double()
    warpers = [TemperatureLogitsWarper(float(temperature))]
    warpers += [TopKLogitsWarper(top_k)] if top_k else []
    warpers += [TopPLogitsWarper(top_p)] if top_p else []
    warpers += [MinPLogitsWarper(min_p)] if min_p else []
    for warper in warpers:
        scores = warper(None, scores)
    return torch.softmax(scores, -1).numpy()


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_agrees_with_transformers(backend, settings):
    ours = specnb.probabilities(LOGITS, Sampling(**settings), backend=backend)
    theirs = warped(LOGITS, **settings)
    assert ((ours > 0) <= (theirs > 0)).all()
    assert np.abs(ours - theirs).sum(1).max() / 2 < PROCESSED_TV


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("device", [False, True], ids=["on the CPU", "as on a device"])
def test_torch_equals_numpy_bit_for_bit(settings, device, monkeypatch):
    if device:
        monkeypatch.setattr(torch_words, "on_cpu", lambda device: False)
    rng = np.random.default_rng(5)
    for V in (1, 2, 129, 1023, 1024, 1025, 5000):
        z = np.round(rng.normal(size=(7, V)) * 8, 1).astype(np.float32)  # ties everywhere
        z[1, rng.random(V) < 0.3] = -np.inf
        z[2], z[3, 0], z[4, -1] = -np.inf, np.nan, np.inf
        z[5] = np.where(rng.random(V) < 0.5, 30, -30)
        a, b = (specnb.probabilities(z, Sampling(**settings), backend=name) for name in ("numpy", "torch"))
        assert a.tobytes() == b.tobytes()


def test_parameters_per_row_equal_one_row_at_a_time():
    rows = Sampling(
        temperature=np.array([0.0, 0.5, 1.0, 2.0, 1.0, 0.0]), top_k=[0, 5, 0, 9, 1, 2],
        top_p=[1.0, 0.5, 0.9, 1.0, 1.0, 0.1], min_p=[0, 0, 0.1, 0, 0.5, 0],
    )  # fmt: skip
    together = specnb.probabilities(LOGITS, rows)
    for i in range(6):
        alone = Sampling(rows.temperature[i], rows.top_k[i], rows.top_p[i], rows.min_p[i])
        assert together[i].tobytes() == specnb.probabilities(LOGITS[i], alone).tobytes()


def test_positions_share_their_requests_parameters():
    logits = LOGITS.reshape(3, 2, 2500)
    together = specnb.probabilities(torch.from_numpy(logits), Sampling(temperature=[0.0, 0.5, 2.0]))
    for b, temperature in enumerate((0.0, 0.5, 2.0)):
        alone = specnb.probabilities(logits[b], Sampling(temperature=temperature))
        assert together[b].numpy().tobytes() == alone.tobytes()


def test_greedy_takes_the_lowest_id_of_a_tie():
    assert specnb.probabilities(np.array([1.0, 3.0, 3.0]), Sampling(temperature=0)).tolist() == [0, 1, 0]


def test_ties_at_a_threshold_stay_together():
    z = np.array([2.0, 1.0, 1.0, 0.0])
    assert (specnb.probabilities(z, Sampling(top_k=2)) > 0).tolist() == [True, True, True, False]
    assert (specnb.probabilities(z, Sampling(top_p=0.6)) > 0).tolist() == [True, True, True, False]


def test_a_row_without_a_finite_maximum_is_nan_and_then_flagged():
    z = np.array([[0.0, np.nan], [0.0, np.inf], [-np.inf, -np.inf], [0.0, 0.0]])
    for temperature in (0.0, 1.0):
        p = specnb.probabilities(z, Sampling(temperature))
        assert np.isnan(p).all(1).tolist() == [True, True, True, False]
        verdict = specnb.verify(np.zeros((4, 0), int), None, p[:, None], seed=1)
        assert (verdict.status != 0).tolist() == [True, True, True, False]
        assert verdict.tokens[:3, 0].tolist() == [-1, -1, -1]


def test_rounding_rows_to_bfloat16_moves_their_law_by_a_thousandth():
    """What "lossless" doesn't cover: it is with respect to the rows as given."""
    p = torch.from_numpy(specnb.probabilities(LOGITS)).double()
    rounded = p.bfloat16().double()
    moved = (rounded / rounded.sum(1, keepdim=True) - p / p.sum(1, keepdim=True)).abs().sum(1) / 2
    assert moved.min() > 3e-4
    assert moved.max() < 3e-3


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_dtypes_convert_first(dtype):
    z = torch.from_numpy(LOGITS).to(dtype)
    assert torch.equal(specnb.probabilities(z), specnb.probabilities(z.float()))


@pytest.mark.parametrize("backend", ["numpy", "torch", pytest.param("triton", marks=pytest.mark.triton)])
def test_draws_follow_their_words(backend):
    probs = np.array([[0.25, 0.25, 0.5], [0.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    tokens = specnb.draw(probs, seed=[1, 2, 3], position=9, index=2, backend=backend)
    words = [specnb.backends.philox.philox_word(s, 9, 2, 0, 0) / 2**64 for s in (1, 2, 3)]
    assert tokens.tolist() == [int(np.searchsorted([0.25, 0.5, 1.0], words[0], side="right")), -1, 1]
    one_seed = specnb.draw(np.repeat(probs[:1], 4, 0), seed=5, position=[1, 1, 2, 2], backend=backend)
    assert one_seed.tolist() == specnb.draw(np.repeat(probs[:1], 4, 0), seed=5, position=[1, 1, 2, 2]).tolist()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"temperature": -1.0}, "temperature is -1.0; expected 0, or 1e-30"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"temperature": 1e46}, "temperature is 1e[+]46"),
        ({"top_k": 2**70}, "top_k is 1180591620717411303424; expected an integer, 1 … 2"),
        ({"top_k": 2.5}, "top_k is 2.5; expected an integer"),
        ({"top_p": 0.0}, r"top_p is 0.0; expected in \(0, 1\]"),
        ({"min_p": [0.1, 2.0]}, "min_p is"),
        ({"top_k": [[1], [1, 2]]}, "top_k is no array"),
        ({"temperature": "hot"}, "temperature is <U3"),
    ],
)
def test_bad_settings_are_named(settings, said):
    with pytest.raises(SpecnbError, match=said):
        Sampling(**settings)


def test_bad_logits_are_named():
    with pytest.raises(SpecnbError, match=r"logits is int64 \[1, 2\]; expected one of float16"):
        specnb.probabilities(np.array([[1, 2]]))
    with pytest.raises(SpecnbError, match=r"expected \[3\] or a number"):
        specnb.probabilities(LOGITS[:3], Sampling(temperature=[1.0, 2.0]))
    with pytest.raises(SpecnbError, match=r"sampling is 0\.5; expected a specnb\.Sampling"):
        specnb.probabilities(LOGITS, 0.5)
    with pytest.raises(SpecnbError, match="index is -1; expected 0 <= index"):
        specnb.draw(LOGITS, seed=1, index=-1)


@pytest.mark.parametrize("framework", [np.asarray, torch.from_numpy])
def test_extremes_are_fine_and_say_nothing(framework):
    assert specnb.probabilities(framework(np.zeros((0, 3)))).shape == (0, 3)
    assert specnb.probabilities(framework(np.zeros((2, 0, 3)))).shape == (2, 0, 3)
    assert specnb.probabilities(framework(np.array([3e38, -3e38, 3e38]))).tolist() == [0.5, 0.0, 0.5]
    assert np.isnan(np.asarray(specnb.probabilities(framework(np.array([1e300, 0.0]))))).all()
    for temperature in (1e-30, 1e30):
        extreme = specnb.probabilities(framework(np.array([2.0, 2.0, -np.inf])), Sampling(temperature))
        assert extreme.tolist() == [0.5, 0.5, 0.0]


@pytest.mark.parametrize("backend", ["numpy", "torch"])
@pytest.mark.parametrize("position", [5, 2**63 - 1])
def test_a_coupled_draft_is_drawn_by_the_word_of_its_position(backend, position):
    row, words = np.random.default_rng(0).dirichlet(np.ones(50)), {"seed": 3, "position": position}
    drafted, others = (
        [int(specnb.draw(row, **words, index=i, rule=rule, backend=backend)) for i in range(4)]
        for rule in ("coupled", "token")
    )
    assert len(set(drafted)) > 1
    assert drafted != others
    verdict = specnb.verify(drafted, None, np.array([row] * 5), **words, rule="coupled", backend="numpy")
    assert verdict.num_accepted == 4
