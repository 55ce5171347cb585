"""Bit-equality: torch and triton return NumPy's tokens, counts and status; and wrong backends are caught."""

from __future__ import annotations

import inspect
import sys
import types

import numpy as np
import pytest
import regimes
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import specnb
from specnb import backends, rules
from specnb.backends import numpy as reference
from specnb.backends import numpy_drafts, numpy_law, numpy_mass, torch_words

OTHERS = ["torch", pytest.param("triton", marks=pytest.mark.triton)]
EVERY_FUNCTION = pytest.mark.parametrize("function", regimes.FUNCTIONS)
EVERY_REGIME = pytest.mark.parametrize("regime", regimes.ALL, ids=lambda r: r.__name__)

# The interpreter takes milliseconds per row and tile: fewer sizes, the same regimes.
SIZES = {"torch": regimes.VOCABULARIES, "triton": (3, 2049)}


@EVERY_REGIME
@EVERY_FUNCTION
@pytest.mark.parametrize("name", OTHERS)
def test_backends_agree(name, function, regime):
    cases = regimes.batches(regime, SIZES[name])
    assert cases
    assert regimes.disagreements(reference, backends.load(name, "cpu"), cases, function) == []


@pytest.fixture
def as_on_a_device(monkeypatch):
    """Make the torch backend take the path of a CUDA device, which reads no value, on the CPU."""
    monkeypatch.setattr(torch_words, "on_cpu", lambda device: False)


@pytest.mark.usefixtures("as_on_a_device")
@EVERY_REGIME
@EVERY_FUNCTION
def test_torch_agrees_on_the_path_of_a_device(function, regime):
    cases = regimes.batches(regime, (1, 3, 129, 4097), seed=1)
    assert regimes.disagreements(reference, backends.load("torch"), cases, function) == []


@EVERY_REGIME
@EVERY_FUNCTION
def test_torch_reads_no_value_on_a_device(function, regime):
    """Tensors without storage: whatever would wait for a value raises."""
    b = regimes.tensors(regimes.arguments_of(function, regime(np.random.default_rng(0), 1500)))
    arguments = {k: v.to("meta") if isinstance(v, torch.Tensor) else v for k, v in b.items()}
    tokens, n, status = getattr(backends.load("torch"), function)(**arguments)
    assert {a.device.type for a in (tokens, n, status)} == {"meta"}
    assert tokens.shape == (len(n), arguments["draft"].shape[1] + 1)


@pytest.mark.parametrize("V", [32000, 128256, 151936])
@EVERY_FUNCTION
@pytest.mark.parametrize("name", OTHERS)
def test_backends_agree_on_real_vocabularies(name, function, V):
    rng = np.random.default_rng(V)
    rows = 1 if name == "triton" else 4
    case = regimes.batch(rng, rows, 2, V, 0.5)
    assert regimes.disagreements(reference, backends.load(name, "cpu"), [case], function) == []


@EVERY_FUNCTION
def test_the_regimes_accept_all_some_and_none(function):
    """A rule whose drafts all failed in every regime would be compared on its final tokens alone."""
    cases = [case for seed in range(4) for case in regimes.batches(regimes.coupled, (3, 129), seed)]
    counts = {n for case in cases for n in regimes.answers(reference, case, function)[1]}
    assert counts == {0, 1, 2, 3}


@st.composite
def any_batch(draw):
    """Any mixture of the regimes' features at small sizes."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    B, G, V = draw(st.integers(0, 5)), draw(st.integers(0, 5)), draw(st.integers(1, 40))
    b = regimes.batch(rng, B, G, V, draw(st.sampled_from([0.0, 0.3, 3.0])))
    zeros = draw(st.sampled_from([0.0, 0.5, 0.95]))
    b |= {k: np.where(rng.random(b[k].shape) < zeros, 0, b[k]).astype(b[k].dtype) for k in "pq"}
    b["draft"] = draw(st.sampled_from([b["draft"], regimes.own_draws(b), rng.integers(-2, V + 2, (B, G))]))
    if B and G and draw(st.booleans()):
        for k in "pq":
            strange = draw(st.sampled_from([np.nan, np.inf, -np.inf, -0.25, 1.25, 2.5]))
            b[k][rng.integers(B), rng.integers(G), draw(st.sampled_from([slice(None), rng.integers(V)]))] = strange
    if draw(st.booleans()):
        b["lengths"] = rng.integers(0, G + 1, B)
    b["onehot"] = draw(st.sampled_from([None, rng.random(B) < 0.5]))
    b["q"] = draw(st.sampled_from([b["q"], b["q"], None]))
    b["position"] = draw(st.sampled_from([b["position"], b["position"], 2**63 - 1]))
    if draw(st.booleans()):
        grid = draw(st.sampled_from([4, 2**53]))
        b |= {"seed": None, "uniforms": rng.integers(0, grid, (B, G + 1)) / grid}
    return b


@EVERY_FUNCTION
@pytest.mark.parametrize(("name", "examples"), [("torch", 300), pytest.param("triton", 12, marks=pytest.mark.triton)])
def test_backends_agree_on_anything(name, examples, function):
    candidate = backends.load(name, "cpu")

    @settings(max_examples=examples)
    @given(any_batch())
    def agree(case):
        assert regimes.disagreements(reference, candidate, [case], function) == []

    agree()


@pytest.mark.parametrize("regime", [regimes.near, regimes.tiny])
@pytest.mark.parametrize("rule", ["token", "block"])
@pytest.mark.parametrize("name", OTHERS)
def test_bfloat16_agrees_with_the_same_values_in_float32(name, rule, regime):
    b = regime(np.random.default_rng(3), 257)
    p, q = (torch.from_numpy(b[k]).bfloat16() for k in "pq")
    arguments = {"seed": b["seed"], "position": b["position"], "uniforms": b["uniforms"], "rule": rule}
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


@pytest.mark.parametrize("function", [*regimes.FUNCTIONS, "draw"])
@pytest.mark.parametrize("name", OTHERS)
def test_signatures_match(name, function):
    ours, theirs = (getattr(module, function) for module in (reference, backends.load(name, "cpu")))
    assert inspect.signature(ours) == inspect.signature(theirs)


MUTANTS = {
    "verify": {
        "accepts at u·q = p": ("accept_u * drafts.q_x < drafts.p_x", "accept_u * drafts.q_x <= drafts.p_x"),
        "accepts an impossible draft": ("drafts.inside & (drafts.q_x > 0) & (accept_u", "drafts.inside & (accept_u"),
        "ignores lengths": ("np.minimum(length, np.maximum(lengths, 0))", "length"),
        "ignores the end of a draft": ("ended = draft == -1", "ended = draft == -2**62"),
        "rounds uniforms to float32": (
            "return (word[:, :G] >> np.uint64(11)) * 2.0**-53",
            "return ((word[:, :G] >> np.uint64(11)) * 2.0**-53).astype(np.float32)",
        ),
        "rounds given uniforms to float32": (
            "return grid[:, :G] * 2.0**-53",
            "return (grid[:, :G] * 2.0**-53).astype(np.float32)",
        ),
        "corrects from the row before": ("self.p[rows, np.minimum(n, G)]", "self.p[rows, np.maximum(n, 1) - 1]"),
        "corrects from p, not the residual": ("p_n - q_n, 0.0)", "p_n, 0.0)"),
        "draws the bonus from the residual": ("q_n[~(subtracted & ~self.onehot)] = 0.0", "q_n[self.onehot] = 0.0"),
        "has no fallback": ("w[fallback] = weights(p_n[fallback])", "pass"),
        "has an epsilon floor": ("np.maximum(scale[:, None] * p_n", "np.maximum(1e-9 + scale[:, None] * p_n"),
        "picks with >= for >": ("cumulative <= threshold[:, None]", "cumulative < threshold[:, None]"),
        "reuses the first accept word": ("[(i, ACCEPTING) for i", "[(0, ACCEPTING) for i"),
        "draws the final token with an accept word": ("[(0, FINAL)]", "[(0, ACCEPTING)]"),
        "forgets the position": ("words(seed, position, [(i, ACCEPTING)", "words(seed, 0, [(i, ACCEPTING)"),
        "rounds rows to float32": ("pad(row.astype(np.float64)", "pad(row.astype(np.float32)"),
        "keeps a rejected one-hot draft": ("q_n[rows[point], x_n[point]] = 1.0", "pass"),
        "is silent about a NaN": ("strange.any(axis=1) * Flag.NONFINITE", "0"),
        "is silent about an impossible draft": ("impossible.any(axis=1) * Flag.IMPOSSIBLE", "0"),
        "lets a heavy row overflow": ("EXCESS = 2**31 - 2**20", "EXCESS = 2**62"),
    },
    "verify_block": {
        "stops at the first failure": ("(drafts.length >= i) & (acc", "(drafts.length >= i) & (n == i - 1) & (acc"),
        "accepts at u = h": ("(accept_u[:, i - 1] < success)", "(accept_u[:, i - 1] <= success)"),
        "corrects without its scale": ("a[np.arange(B), n], final_word", "np.ones(B), final_word"),
        "scales the bonus": ("np.where(rejected, scale, 1.0))", "scale)"),
        "sums the row before": ("drafts.rows(np.full(B, i), more)", "drafts.rows(np.full(B, i - 1), more)"),
        "sums without the scale": ("residual(p_i, q_i, a[:, i])", "residual(p_i, q_i, np.ones(B))"),
        "has h without 1 - a": ("whole = mass + (1 - a[:, i])", "whole = mass"),
        "fails at 0/0": ("np.where(whole > 0, whole, 1), 1.0)", "np.where(whole > 0, whole, 1), 0.0)"),
        "tests the last draft by a mass": ("np.where(more, np.where(whole", "np.where(i, np.where(whole"),
        "lets a exceed 1": ("np.where(ratio < 1, ratio, ratio >= 1)", "ratio"),
        "divides first": (
            "a[:, i] * p_x[:, i] / np.where(possible[:, i], q_x[:, i], 1.0)",
            "p_x[:, i] / np.where(possible[:, i], q_x[:, i], 1.0) * a[:, i]",
        ),
        "is silent about a NaN behind": ("status |= (more & ~finite) * Flag.NONFINITE", "pass"),
        "is silent about a heavy row behind": ("status |= excess * Flag.EXCESS_MASS", "pass"),
        "emits a token behind a heavy row": ("np.where(status & Flag.EXCESS_MASS, -1, token)", "token"),
    },
    "verify_coupled": {
        "draws with the final word": ("[(0, OWN)]", "[(0, FINAL)]"),
        "forgets a token's position": ("(position & 0xFFFFFFFF) + i", "position"),
        "reports what it never reached": ("np.where(columns <= n[:, None], flags, 0)", "flags"),
        "ignores the end of a draft": ("np.cumprod(counted & (draft", "np.cumprod((draft"),
        "emits the first draw": ("own[np.arange(B), n]), n", "own[:, 0]), n"),
        "is silent about a NaN": ("~np.isfinite(p).all(axis=2) * Flag.NONFINITE", "0"),
        "is silent about a foreign id": ("(draft >= V))) * Flag.OUT_OF_RANGE", "(draft >= V))) * 0"),
    },
    "verify_by_law": {
        "forgets what it kept": ("at_least, law_of_n[:, i] + at_least", "at_least, law_of_n[:, i]"),
        "corrects from the first row": ("correction[np.arange(len(n)), n]", "correction[:, 0]"),
        "is silent about a NaN": ("~finite * Flag.NONFINITE | bad_", "bad_"),
    },
}
"""Faults that real decoders had or might have, each as one change to the source of the NumPy backend."""


PARTS = numpy_mass, numpy_drafts, numpy_law, reference
"""The files of the NumPy backend in the order in which they import each other."""


def mutant(before, after):
    """Return the NumPy backend with one piece of its source replaced, in whichever of its files that stands."""
    sources = {module: inspect.getsource(module) for module in PARTS}
    found = [module for module, source in sources.items() if before in source]
    assert [sources[module].count(before) for module in found] == [1], f"{before!r} isn't once in the backend"
    changed = dict.fromkeys([module.__name__ for module in PARTS])
    with pytest.MonkeyPatch.context() as patch:
        for module, source in sources.items():
            changed[module.__name__] = wrong = types.ModuleType(module.__name__)
            patch.setitem(sys.modules, module.__name__, wrong)  # for the parts behind it
            exec(compile(source.replace(before, after), "mutant", "exec"), wrong.__dict__)
    return changed[reference.__name__]


@pytest.mark.parametrize(("function", "fault"), [(name, fault) for name, faults in MUTANTS.items() for fault in faults])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # a wrong backend may also compute nonsense
def test_a_wrong_backend_is_caught(function, fault):
    wrong, more = mutant(*MUTANTS[function][fault]), {"law": rules.block} if function == "verify_by_law" else {}
    cases = (case for seed in range(4) for regime in regimes.ALL for case in regimes.batches(regime, (3, 129), seed))
    assert any(regimes.disagreements(reference, wrong, [case], function, **more) for case in cases)
