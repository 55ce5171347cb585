"""Bit-equality: torch and triton return NumPy's tokens, counts and status; and wrong backends are caught."""

from __future__ import annotations

import inspect
import types

import numpy as np
import pytest
import regimes
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import specnb
from specnb import backends
from specnb.arrays import to_torch
from specnb.backends import numpy as reference
from specnb.backends import torch_words

OTHERS = ["torch", pytest.param("triton", marks=pytest.mark.triton)]

# The interpreter takes milliseconds per row and tile: fewer sizes, the same regimes.
SIZES = {"torch": regimes.VOCABULARIES, "triton": (1, 129, 2049)}


def batches(regime, vocabularies, seed=0):
    """Return one batch of a regime per vocabulary."""
    return [regime(np.random.default_rng([seed, V]), V) for V in vocabularies]


@pytest.mark.parametrize("regime", regimes.ALL, ids=lambda r: r.__name__)
@pytest.mark.parametrize("name", OTHERS)
def test_backends_agree(name, regime):
    cases = batches(regime, SIZES[name])
    assert cases
    assert regimes.disagreements(reference, backends.load(name, "cpu"), cases) == []


@pytest.fixture
def as_on_a_device(monkeypatch):
    """Make the torch backend take the path of a CUDA device, which reads no value, on the CPU."""
    monkeypatch.setattr(torch_words, "on_cpu", lambda device: False)


@pytest.mark.usefixtures("as_on_a_device")
@pytest.mark.parametrize("regime", regimes.ALL, ids=lambda r: r.__name__)
def test_torch_agrees_on_the_path_of_a_device(regime):
    assert regimes.disagreements(reference, backends.load("torch"), batches(regime, (1, 3, 129, 4097), seed=1)) == []


@pytest.mark.parametrize("regime", regimes.ALL, ids=lambda r: r.__name__)
def test_torch_reads_no_value_on_a_device(regime):
    """Tensors without storage: whatever would wait for a value raises."""
    arguments = {
        k: to_torch(v).to("meta") if isinstance(v, np.ndarray) else v
        for k, v in regime(np.random.default_rng(0), 1500).items()
    }
    tokens, n, status = backends.load("torch").verify(**arguments)
    assert {a.device.type for a in (tokens, n, status)} == {"meta"}
    assert tokens.shape == (len(n), arguments["draft"].shape[1] + 1)


@pytest.mark.parametrize("V", [32000, 128256, 151936])
@pytest.mark.parametrize("name", OTHERS)
def test_backends_agree_on_real_vocabularies(name, V):
    rng = np.random.default_rng(V)
    rows = 1 if name == "triton" else 4
    case = regimes.batch(rng, rows, 2, V, 0.5)
    assert regimes.disagreements(reference, backends.load(name, "cpu"), [case]) == []


@st.composite
def any_batch(draw):
    """Any mixture of the regimes' features at small sizes."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    B, G, V = draw(st.integers(0, 5)), draw(st.integers(0, 5)), draw(st.integers(1, 40))
    b = regimes.batch(rng, B, G, V, draw(st.sampled_from([0.0, 0.3, 3.0])))
    zeros = draw(st.sampled_from([0.0, 0.5, 0.95]))
    b |= {k: np.where(rng.random(b[k].shape) < zeros, 0, b[k]).astype(b[k].dtype) for k in "pq"}
    if draw(st.booleans()):
        b["draft"] = rng.integers(-2, V + 2, (B, G))
    if draw(st.booleans()):
        b["lengths"] = rng.integers(0, G + 1, B)
    b["onehot"] = draw(st.sampled_from([None, rng.random(B) < 0.5]))
    b["q"] = draw(st.sampled_from([b["q"], b["q"], None]))
    if draw(st.booleans()):
        grid = draw(st.sampled_from([4, 2**53]))
        b |= {"seed": None, "uniforms": rng.integers(0, grid, (B, G + 1)) / grid}
    return b


@pytest.mark.parametrize(("name", "examples"), [("torch", 300), pytest.param("triton", 30, marks=pytest.mark.triton)])
def test_backends_agree_on_anything(name, examples):
    candidate = backends.load(name, "cpu")

    @settings(max_examples=examples)
    @given(any_batch())
    def agree(case):
        assert regimes.disagreements(reference, candidate, [case]) == []

    agree()


@pytest.mark.parametrize("regime", [regimes.near, regimes.tiny])
@pytest.mark.parametrize("name", OTHERS)
def test_bfloat16_agrees_with_the_same_values_in_float32(name, regime):
    b = regime(np.random.default_rng(3), 257)
    p, q = (torch.from_numpy(b[k]).bfloat16() for k in "pq")
    arguments = {"seed": b["seed"], "position": b["position"], "uniforms": b["uniforms"]}
    half = specnb.verify(torch.from_numpy(b["draft"]), q, p, **arguments, backend=name)
    full = specnb.verify(b["draft"], q.float().numpy(), p.float().numpy(), **arguments)
    assert half.tokens.tolist() == full.tokens.tolist()
    assert half.status.tolist() == full.status.tolist()


@pytest.mark.parametrize("name", OTHERS)
def test_rows_beyond_32_bit_offsets(name):
    """Request 1 starts 2^31 elements after request 0, in memory that is reserved and mostly never touched."""
    b = regimes.batch(np.random.default_rng(5), 2, 1, 9)
    p = torch.empty(2**31 + 18).as_strided((2, 2, 9), (2**31, 9, 1))
    p.copy_(torch.from_numpy(b["p"]))
    expected = specnb.verify(b["draft"], b["q"], b["p"], seed=b["seed"], position=b["position"])
    verdict = specnb.verify(b["draft"], b["q"], p, seed=b["seed"], position=b["position"], backend=name)
    assert verdict.tokens.tolist() == expected.tokens.tolist()


def test_signatures_match():
    for function in ("verify", "draw"):
        shapes = [
            str(inspect.signature(getattr(backends.load(name, "cpu"), function))) for name in backends.NAMES
        ]
        assert len(set(shapes)) == 1, shapes


MUTANTS = {
    "accepts at u·q = p": ("accept_u * q_x < p_x", "accept_u * q_x <= p_x"),
    "accepts an impossible draft": ("inside & (q_x > 0) &", "inside &"),
    "ignores lengths": ("np.minimum(length, np.clip(lengths, 0, draft.shape[1]))", "length"),
    "ignores the end of a draft": ("ended = np.cumsum(draft == -1, axis=1) > 0", "ended = draft == -2**62"),
    "rounds uniforms to float32": (
        "return (word[:, :G] >> np.uint64(11)) * 2.0**-53",
        "return ((word[:, :G] >> np.uint64(11)) * 2.0**-53).astype(np.float32)",
    ),
    "rounds given uniforms to float32": (
        "return grid[:, :G] * 2.0**-53",
        "return (grid[:, :G] * 2.0**-53).astype(np.float32)",
    ),
    "corrects from the row before": ("p_n = _widen(p[rows, n], V)", "p_n = _widen(p[rows, np.maximum(n, 1) - 1], V)"),
    "corrects from p, not the residual": ("w = weights(p_n - np.where(q_n > 0, q_n, 0.0))", "w = weights(p_n)"),
    "draws the bonus from the residual": ("q_n[~residual] = 0.0", "q_n[onehot] = 0.0"),
    "has no fallback": ("w[fallback] = weights(p_n[fallback])", "pass"),
    "has an epsilon floor": ("w = weights(p_n - np.where", "w = weights(1e-9 + p_n - np.where"),
    "picks with >= for >": ("cumulative <= threshold[:, None]", "cumulative < threshold[:, None]"),
    "reuses the first accept word": ("[(i, ACCEPTING) for i", "[(0, ACCEPTING) for i"),
    "draws the final token with an accept word": ("[(0, FINAL)]", "[(0, ACCEPTING)]"),
    "forgets the position": ("few_words(seed, position, counters, B)", "few_words(seed, 0, counters, B)"),
    "rounds rows to float32": ("_pad(row.astype(np.float64)", "_pad(row.astype(np.float32)"),
    "keeps a rejected one-hot draft": ("q_n[rows[point], x_n[point]] = 1.0", "pass"),
    "is silent about a NaN": ("nonfinite * Status.NONFINITE", "0"),
    "is silent about an impossible draft": ("impossible * Status.IMPOSSIBLE", "0"),
    "lets a heavy row overflow": ("_EXCESS = 2**31 - 2**20", "_EXCESS = 2**62"),
}
"""Faults that real decoders had, each as one change to the source of the NumPy backend."""


def mutant(before, after):
    """Return the NumPy backend with one piece of its source replaced."""
    source = inspect.getsource(reference)
    assert source.count(before) == 1, f"{before!r} stands {source.count(before)} times in the backend"
    module = types.ModuleType("mutant.numpy")
    exec(compile(source.replace(before, after), "mutant", "exec"), module.__dict__)
    return module


@pytest.mark.parametrize("fault", MUTANTS)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # a wrong backend may also compute nonsense
def test_a_wrong_backend_is_caught(fault):
    wrong = mutant(*MUTANTS[fault])
    cases = [case for seed in range(4) for regime in regimes.ALL for case in batches(regime, (3, 129), seed)]
    assert regimes.disagreements(reference, wrong, cases)
