"""verify_logits: the verdict of `verify` on `probabilities`, token for token, on every backend and every path."""

from __future__ import annotations

import inspect
import json
import types
from fractions import Fraction as F
from pathlib import Path

import numpy as np
import pytest
import regimes
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_laws import _integrate

import specnb
from specnb import Sampling, SpecnbError, Status, backends, laws, rules
from specnb.arrays import to_numpy, to_torch
from specnb.backends import bounds, torch_lazy, torch_logits, torch_mass, torch_pick, torch_words
from specnb.backends import numpy as reference
from specnb.backends.numpy_logits import exp2, processed

VECTORS = json.loads((Path(__file__).parent / "vectors" / "contract.json").read_text())
RULES = ["token", "match", "block", "coupled"]
EVERY_RULE = pytest.mark.parametrize("rule", RULES)
EVERY_REGIME = pytest.mark.parametrize("regime", regimes.ALL, ids=lambda r: r.__name__)


def parameters(rng, B, plain=False):
    """Return temperature, top_k, top_p and min_p per request: extremes, 0 and filters among them, or T alone."""
    temperature = rng.choice([0.0, 1e-3, 0.3, 1.0, 1.0, 1.7, 1e3], B)
    if plain:
        return np.maximum(temperature, 0.3), np.zeros(B, np.int64), np.ones(B), np.zeros(B)
    return (temperature, rng.choice([0, 0, 1, 2, 7], B), rng.choice([1.0, 1.0, 0.9, 0.3], B),
            rng.choice([0.0, 0.0, 0.05, 1.0], B))  # fmt: skip


def of_logits(b, rng, plain=False):
    """Return a regime's batch as arguments of `verify_logits`: the logarithms of its rows, and how they are sampled."""
    with np.errstate(all="ignore"):
        y, z = (None if b[k] is None else np.log(b[k]) for k in "qp")
    others = {name: b[name] for name in ("draft", "lengths", "onehot", "seed", "position", "uniforms")}
    B = len(b["draft"])
    return others | {"y": y, "z": z, "draft_parameters": parameters(rng, B, plain),
                     "parameters": parameters(rng, B, plain)}  # fmt: skip


def strange(rng, V):
    """Saturated, tied, dead and broken rows of logits beside plain ones."""
    b = regimes.batch(rng, 10, 3, V, 0.5)
    z = np.log(b["p"])
    z[0] = np.where(rng.random((4, V)) < 0.5, 30, -30)
    z[1] = np.round(z[1])
    z[2][:, rng.random(V) < 0.5] = -np.inf
    z[3, rng.integers(4)], z[4, rng.integers(4), rng.integers(V)] = -np.inf, np.nan
    z[5, rng.integers(4), rng.integers(V)], z[6] = np.inf, 0
    z[7] *= 1e30
    y = z[:, :3] + 0.3 * rng.normal(size=(10, 3, V)).astype(np.float32)
    y[8] = z[8, :3]
    return of_logits(b, rng) | {"y": y, "z": z}


def knife(rng, V):
    """Uniforms at p(x)/q(x), or one step of the grid beside it, and final words on the border between two tokens."""
    b = of_logits(regimes.batch(rng, 9, 2, V, 0.5), rng, plain=True)
    p, q = processed(b["z"], b["parameters"]), processed(b["y"], b["draft_parameters"])
    rows, columns, x = np.arange(9)[:, None], np.arange(2), b["draft"]
    with np.errstate(all="ignore"):
        ratio = np.nan_to_num(p[rows, columns, x].astype(np.float64) / q[rows, columns, x], posinf=0)
    u = np.clip(ratio + np.tile([-1.0, 0.0, 1.0], 3)[:, None] * 2.0**-53, 0, 1 - 2.0**-53)
    w = reference.weights(p[:, 2].astype(np.float64)).cumsum(1)
    at = np.minimum(w[np.arange(9), rng.integers(0, V, 9)] / w[:, -1], 1 - 2.0**-53)
    return b | {"seed": None, "uniforms": np.column_stack([u, at])}


def answers(module, rule, b):
    """Return (tokens, num_accepted, status) of a backend as lists; rule `coupled` gets seeds in place of uniforms."""
    b = regimes.arguments_of("verify_coupled" if rule == "coupled" else "verify", b)
    b = b if rules.get(rule).reads_q else b | {"y": None}
    if not module.__name__.endswith("numpy"):
        b = {k: tuple(map(to_torch, v)) if isinstance(v, tuple) else v for k, v in regimes.tensors(b).items()}
    return [to_numpy(a).tolist() for a in module.verify_logits(rule, **b)]


def disagreements(candidate, rule, cases):
    """Return the batches on which a backend and NumPy differ, with both answers."""
    pairs = [(answers(reference, rule, b), answers(candidate, rule, b)) for b in cases]
    return [pair for pair in pairs if pair[0] != pair[1]]


def cases_of(regime, vocabularies, seed=0):
    """Return batches of logits of one regime."""
    rngs = [np.random.default_rng([seed, V]) for V in vocabularies]
    make = regime if regime in (strange, knife) else lambda rng, V: of_logits(regime(rng, V), rng)
    return [make(rng, V) for rng, V in zip(rngs, vocabularies, strict=True)]


LOGITS_REGIMES = [*(r for r in regimes.ALL if r is not regimes.wrapping), strange, knife]


@pytest.mark.parametrize("regime", LOGITS_REGIMES, ids=lambda r: r.__name__)
@EVERY_RULE
def test_backends_agree(rule, regime):
    assert disagreements(backends.load("torch"), rule, cases_of(regime, (1, 3, 1500, 8193))) == []


@pytest.mark.triton
@pytest.mark.parametrize("rule", ["token", "block"])
def test_triton_agrees_on_a_few_rows(rule):
    """The interpreter takes seconds a row: `test_kernels_logits` has the kernels' own cases."""
    cases = [first(b, slice(2)) for regime in (regimes.mixed, knife) for b in cases_of(regime, (3,))]
    assert disagreements(backends.load("triton", "cpu"), rule, cases) == []


def first(b, rows):
    """Return some of a batch's requests."""
    cut = {k: v[rows] if isinstance(v, np.ndarray) else v for k, v in b.items()}
    return cut | {k: tuple(a[rows] for a in b[k]) for k in ("draft_parameters", "parameters")}


@pytest.mark.parametrize("regime", LOGITS_REGIMES, ids=lambda r: r.__name__)
@EVERY_RULE
def test_torch_agrees_on_the_path_of_a_device(rule, regime, monkeypatch):
    monkeypatch.setattr(torch_words, "on_cpu", lambda device: False)
    assert disagreements(backends.load("torch"), rule, cases_of(regime, (3, 1500), seed=1)) == []


@pytest.fixture
def rows_one_by_one(monkeypatch):
    """Make the torch backend look at short rows as it looks at long ones."""
    monkeypatch.setattr(torch_pick, "LONG", 1)


@pytest.mark.usefixtures("rows_one_by_one")
@pytest.mark.parametrize("regime", LOGITS_REGIMES, ids=lambda r: r.__name__)
@pytest.mark.parametrize("rule", ["token", "match"])
def test_torch_agrees_row_by_row(rule, regime):
    cases = cases_of(regime, (1, 3, 129, 1025), seed=2)
    assert disagreements(backends.load("torch"), rule, cases) == []


@pytest.mark.usefixtures("rows_one_by_one")
@EVERY_REGIME
@pytest.mark.parametrize("function", regimes.FUNCTIONS)
def test_sums_in_floating_point_pick_the_same_tokens(function, regime):
    cases = regimes.batches(regime, (3, 129, 1025), seed=4)
    assert regimes.disagreements(reference, backends.load("torch"), cases, function) == []


@pytest.mark.parametrize("V", [32000, 128256])
def test_backends_agree_on_real_vocabularies(V):
    rng = np.random.default_rng(V)
    b = of_logits(regimes.batch(rng, 6, 3, V, 0.5), rng, plain=True)
    assert disagreements(backends.load("torch"), "token", [b]) == []


@st.composite
def any_logits(draw):
    """Any mixture of sampling, vocabularies, lengths and one-hot drafts at small sizes, with a few odd values."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    B, G, V = draw(st.integers(0, 4)), draw(st.integers(0, 4)), draw(st.integers(1, 30))
    b = of_logits(regimes.batch(rng, B, G, V, draw(st.sampled_from([0.0, 0.3, 3.0]))), rng, draw(st.booleans()))
    if draw(st.booleans()):
        b["y"] = b["y"][..., : draw(st.integers(1, V))]
    if B and draw(st.booleans()):
        b["z"][rng.integers(B), rng.integers(G + 1), rng.integers(V)] = draw(st.sampled_from([np.nan, np.inf, 40.0]))
    if draw(st.booleans()):
        b["z"] = np.round(b["z"])
    b["draft"] = draw(st.sampled_from([b["draft"], rng.integers(-2, V + 2, (B, G))]))
    b["lengths"] = draw(st.sampled_from([None, rng.integers(0, G + 1, B)]))
    b["onehot"] = draw(st.sampled_from([None, rng.random(B) < 0.5]))
    b["y"] = draw(st.sampled_from([b["y"], b["y"], None]))
    return b


@EVERY_RULE
@pytest.mark.parametrize("long", [1, torch_pick.LONG])
def test_torch_agrees_on_anything(rule, long):
    torch_backend = backends.load("torch")

    @settings(max_examples=40)
    @given(any_logits())
    def agree(case):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch_pick, "LONG", long)
            assert disagreements(torch_backend, rule, [case]) == []

    agree()


@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_the_contracts_logits(backend):
    for case in VECTORS["logits"]:
        row, p = np.array(case["logits"], np.float32), [float.fromhex(x) for x in case["probabilities"]]
        words = {"seed": 11, "position": len(p)}
        verdict = specnb.verify_logits(
            np.empty(0, int), None, row[None], sampling=Sampling(**case["sampling"]), backend=backend, **words
        )
        expected = specnb.verify(np.empty(0, int), None, np.array([p], np.float32), backend="numpy", **words)
        assert verdict.tokens.tolist() == expected.tokens.tolist()


ROWS = Sampling(temperature=[0, 0.5, 1, 2, 0, 1e-3], top_k=[0, 2, 5, 0, 0, 9], top_p=[1, 0.9, 1, 0.5, 1, 1])


@pytest.mark.parametrize("V", [40, 9001])
@pytest.mark.parametrize("draft_sampling", [None, Sampling(min_p=0.01)], ids=str)
@pytest.mark.parametrize("rule", [*RULES, rules.lenient(0.5)], ids=str)
@pytest.mark.parametrize("framework", [np.asarray, torch.from_numpy])
def test_it_is_verify_on_probabilities(framework, rule, draft_sampling, V):
    rng = np.random.default_rng(3)
    z = rng.normal(size=(6, 4, V)).astype(np.float32) * 2
    y = z[:, :3, :-5] + 0.3 * rng.normal(size=(6, 3, V - 5)).astype(np.float32)
    q, p = specnb.probabilities(y, draft_sampling or ROWS), specnb.probabilities(z, ROWS)
    draft = np.stack([specnb.draw(q[:, i], seed=8, position=5, index=i, rule=rule) for i in range(3)], 1)
    others = {"rule": rule, "seed": 8, "position": 5, "lengths": [3, 3, 2, 3, 0, 3], "onehot": np.arange(6) == 2}
    expected = specnb.verify(draft, q, p, **others)
    verdict = specnb.verify_logits(
        framework(draft), framework(y), framework(z), sampling=ROWS, draft_sampling=draft_sampling, **others
    )
    for name in ("tokens", "num_accepted", "status"):
        assert getattr(verdict, name).tolist() == getattr(expected, name).tolist()
    assert (verdict.rule, verdict.backend) == (str(rule), "torch" if framework is torch.from_numpy else "numpy")
    for row in range(6):
        assert verdict.residual(row).tolist() == expected.residual(row).tolist()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("V", [50, 9000])
def test_other_dtypes_convert_first(dtype, V):
    z = (torch.randn(3, 4, V, generator=torch.Generator().manual_seed(0)) * 2).to(dtype)
    draft = torch.randint(V, (3, 3), generator=torch.Generator().manual_seed(1))
    given, full = (specnb.verify_logits(draft, a[:, :3], a, seed=4) for a in (z, z.float()))
    assert torch.equal(given.tokens, full.tokens)
    if dtype is not torch.bfloat16:
        arrays = z[:, :3].numpy(), z.numpy()
        assert specnb.verify_logits(draft.numpy(), *arrays, seed=4).tokens.tolist() == given.tokens.tolist()


def test_a_request_without_a_batch_and_inputs_that_stay():
    z = torch.randn(3, 9000, generator=torch.Generator().manual_seed(0))
    draft, before = torch.tensor([5, 7]), z.clone()
    alone = specnb.verify_logits(draft, z[:2], z, seed=4)
    batched = specnb.verify_logits(draft[None], z[None, :2], z[None], seed=4)
    assert alone.tokens.tolist() == batched.tokens[0].tolist()
    assert alone.num_accepted == 2  # p = q
    assert torch.equal(z, before)


# Rows whose probabilities are powers of two: with this temperature a logit is its base-2 logarithm.
OCTAVE = 1.4426950408889634
HALVES = [[-1, -2, -3, -4, -4], [-2, -2, -2, -3, -3], [-4, -4, -1, -2, -3], [-3, -3, -2, -2, -2]]
TOPS = [[-1, -1, -3, -4, -4], [-9, -9, -9, -2, -2], [0, -1, -1, -2, -2]]


@pytest.mark.parametrize("name", ["numpy", "torch"])
@pytest.mark.parametrize(("logits", "top_k"), [(HALVES, None), (HALVES[::-1], None), (TOPS, 2)])
@pytest.mark.parametrize("rule", ["token", "match", "block", rules.lenient(F(1, 2))], ids=str)
@pytest.mark.usefixtures("rows_one_by_one")
def test_verdicts_integrate_to_the_law(rule, logits, top_k, name):
    """Every drafted path of two, after which every (n, token) has its exact measure."""
    sampling = Sampling(temperature=OCTAVE, top_k=top_k)
    z, y = np.array(logits[:3], np.float32), np.array(logits[1:3], np.float32)
    p, q = ([[F(float(x)) for x in row] for row in specnb.probabilities(rows, sampling)] for rows in (z, y))
    assert {sum(row) for row in p + q} == {1}

    def verdicts(draft, _, p, uniforms):
        rows = (np.repeat(a[None], len(draft), axis=0) for a in (y, z))
        verdict = specnb.verify_logits(draft, *rows, sampling=sampling, rule=rule, uniforms=uniforms, backend=name)
        return to_numpy(verdict.tokens), to_numpy(verdict.num_accepted)

    for draft in ([0, 1], [2, 4], [3, 3], [1, 0]):
        law = laws.law(draft, np.array(q), np.array(p), rule=rule)
        assert (_integrate(verdicts, np.array(draft), q, p, law) == law[0][:, None] * law[1]).all()


@EVERY_RULE
def test_torch_reads_no_value_on_a_device(rule):
    """Tensors without storage: whatever would wait for a value raises."""
    b = of_logits(regimes.mixed(np.random.default_rng(0), 1500), np.random.default_rng(1))

    def meta(value):
        return to_torch(value).to("meta") if isinstance(value, np.ndarray) else value

    arguments = {k: tuple(map(meta, v)) if isinstance(v, tuple) else meta(v) for k, v in b.items()}
    tokens, n, status = backends.load("torch").verify_logits(rule, **arguments)
    assert {a.device.type for a in (tokens, n, status)} == {"meta"}
    assert tokens.shape == (8, 5)


@EVERY_RULE
def test_compiled_verdicts_are_the_same(rule):
    def step(draft, y, z, seeds):
        verdict = specnb.verify_logits(draft, y, z, sampling=Sampling(0.7, top_k=9), rule=rule, seed=seeds, position=4)
        return verdict.tokens, verdict.num_accepted, verdict.status

    b = regimes.tensors(of_logits(regimes.near(np.random.default_rng(2), 129), np.random.default_rng(2)))
    arguments = b["draft"], b["y"], b["z"], torch.arange(4)
    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    for ours, theirs in zip(compiled(*arguments), step(*arguments), strict=True):
        assert torch.equal(ours, theirs)


@EVERY_RULE
def test_the_operator_fits_its_declaration(rule):
    b = regimes.tensors(of_logits(regimes.near(np.random.default_rng(2), 129), np.random.default_rng(2)))
    how = [[*map(to_torch, b[k])] for k in ("draft_parameters", "parameters")]
    arguments = (b["draft"], b["y"], b["z"], *how, None, None, 0, torch.arange(4), 7, None, None, rule)
    torch.library.opcheck(torch.ops.specnb.verify_logits, arguments, test_utils=("test_schema", "test_faketensor"))


@pytest.mark.parametrize("bounds", [torch_lazy._rough, torch_lazy._close])
@pytest.mark.parametrize("spread", [0.01, 2.0, 20.0, 300.0])
def test_estimates_keep_their_bounds(bounds, spread):
    """And are of some use: no wider than a tenth, unless the logits are beyond what a rough sum can tell."""
    rng = np.random.default_rng(5)
    for temperature in (1e-3, 0.3, 1.0, 7.0, 1e3):
        z = torch.from_numpy((spread * rng.normal(size=(1, 5000))).astype(np.float32))
        how = [torch.tensor([value]) for value in (temperature, 0, 1.0, 0.0)]
        request = torch_lazy.Side(z[None], how).request(0)
        for x in (*rng.integers(0, 5000, 20).tolist(), int(z.argmax()), 5000):
            low, high = bounds(request, 0, x)
            exact, _ = torch_lazy._exact(request, 0, x)
            assert low <= exact <= high
            if bounds is torch_lazy._close or (float(z.max()) / temperature < 2000 and x < 5000):
                assert high - low <= 0.1 * exact + 3 * torch_lazy.NEGLIGIBLE


def test_exp2_is_as_close_as_it_must_be():
    t = -np.random.default_rng(6).exponential(8, 10**6).astype(np.float32)
    t = np.concatenate([t, -np.arange(0, 100, 2.0**-12, np.float32)])
    contract, native = exp2(t.copy()).astype(np.float64), torch.exp2(torch.from_numpy(t)).double().numpy()
    assert (np.abs(native - contract) <= (bounds.MASS_ERROR - 2.0**-24) * contract + 2.0**-100).all()


def test_doubtful_verdicts_are_decided_exactly(monkeypatch):
    """On the knife's edge the contract's own arithmetic has the last word; elsewhere it is hardly asked."""
    asked, plain = [], torch_lazy._exact
    monkeypatch.setattr(torch_lazy, "_exact", lambda *a: asked.append(a) or plain(*a))
    answers(backends.load("torch"), "token", knife(np.random.default_rng(7), 9000))
    assert len(asked) >= 9
    asked.clear()
    rng = np.random.default_rng(8)
    answers(backends.load("torch"), "token", of_logits(regimes.batch(rng, 9, 2, 9000, 0.5), rng, plain=True))
    assert len(asked) <= 4


@pytest.mark.parametrize(("spread", "sorts"), [(3.0, 1), (0.001, 2)])
@pytest.mark.parametrize("ties", [False, True])
def test_a_cpu_sorts_all_logits_only_where_the_largest_few_do_not_decide(monkeypatch, spread, sorts, ties):
    asked, plain = [], torch_logits._filter_on_cpu
    monkeypatch.setattr(torch_logits, "_filter_on_cpu", lambda *a: asked.append(a) or plain(*a))
    rng = np.random.default_rng(10)
    z = (spread * rng.normal(size=(8, 3 * torch_logits.FEW))).astype(np.float32)
    z = np.round(4 * z / spread) * (spread / 4) if ties else z
    sampling = Sampling(
        temperature=[1, 1, 0.7, 2, 0, 1, 1, 1], top_k=[0, 0, 9, 1000, 0, 5, 0, 0],
        top_p=[1, 0.9, 0.9, 1, 0.5, 1 - 2**-53, 2**-60, 0.3], min_p=[0.1, 0, 0.05, 0, 0, 0, 0, 0],
    )  # fmt: skip
    expected = specnb.probabilities(z, sampling)
    assert specnb.probabilities(torch.from_numpy(z), sampling).numpy().tolist() == expected.tolist()
    assert [len(a) for a in asked] == [5, 6][:sorts]


FAULTS = {
    "samples the draft as the target": ("processed(y, draft_parameters)", "processed(y, parameters)"),
    "samples the target as the draft": ("processed(z, parameters)", "processed(z, draft_parameters)"),
    "takes logits for probabilities": ("decide(draft, q, processed(z, parameters)", "decide(draft, q, np.exp(z)"),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # a wrong backend may also compute nonsense
def test_a_wrong_backend_is_caught(fault):
    source, (before, after) = inspect.getsource(reference), FAULTS[fault]
    assert source.count(before) == 1
    wrong = types.ModuleType("mutant.numpy")
    exec(compile(source.replace(before, after), "mutant", "exec"), wrong.__dict__)
    cases = (b for regime in (regimes.near, regimes.mixed) for b in cases_of(regime, (3, 129)))
    assert any(disagreements(wrong, rule, [b]) for b in cases for rule in RULES)


@pytest.mark.parametrize(("module", "name", "wrong"), [
    (torch_lazy, "CHORD", 0.96),
    (torch_lazy, "_sum_error", lambda V: -0.02),
    (bounds, "MASS_ERROR", 0.0),
])  # fmt: skip
def test_a_wrong_bound_is_caught(module, name, wrong, monkeypatch):
    monkeypatch.setattr(module, name, wrong)
    cases = (knife(np.random.default_rng(seed), 9000) for seed in range(30))
    assert any(disagreements(backends.load("torch"), "token", [b]) for b in cases)


def border(rng, V):
    """Rows of probabilities and words on the border between two tokens, or next to it."""
    b = regimes.batch(rng, 12, 0, V)
    w = reference.weights(b["p"][:, 0].astype(np.float64)).cumsum(1)
    at = w[np.arange(12), rng.integers(0, V - 1, 12)] / w[:, -1] + np.tile([-1.0, 0.0, 1.0], 4) * 2.0**-53
    return b | {"seed": None, "uniforms": at[:, None]}


def test_on_a_border_between_tokens_the_integers_decide(monkeypatch):
    asked, plain = [], torch_mass._pick
    monkeypatch.setattr(torch_mass, "_pick", lambda *a: asked.append(a) or plain(*a))
    cases = [border(np.random.default_rng(seed), 9000) for seed in range(4)]
    assert regimes.disagreements(reference, backends.load("torch"), cases) == []
    assert len(asked) == 48
    monkeypatch.setattr(torch_pick, "SUM_ERROR", 0.0)
    monkeypatch.setattr(torch_pick, "TRUNCATION", 0.0)
    assert regimes.disagreements(reference, backends.load("torch"), cases) != []


BAD = torch.randn(2, 3, 7, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"sampling": 0.7}, r"sampling is 0\.7; expected a specnb\.Sampling"),
        ({"draft_sampling": 0.7}, r"draft_sampling is 0\.7; expected a specnb\.Sampling"),
        ({"sampling": Sampling([1.0, 1.0, 1.0])}, r"a sampling parameter is .*\[3\] for 2 rows"),
        ({"target_logits": BAD[:, :2]}, "here target_logits needs 3 rows per request and draft_logits 2"),
        ({"target_logits": BAD.long()}, "target_logits is int64"),
        ({"draft_logits": torch.empty(2, 2, 2**18 + 1)}, "expected a vocabulary of 1 … 262144 ids"),
        ({"seed": None}, "exactly one of seed and uniforms is required"),
        ({"validate": "rise"}, "validate is 'rise'"),
        ({"rule": "coupled", "seed": None, "uniforms": [[0.5] * 3] * 2}, "rule 'coupled' shares a word"),
    ],
)
def test_bad_arguments_are_named(change, said):
    arguments = {"draft": [[1, 2], [3, 4]], "draft_logits": BAD[:, :2], "target_logits": BAD, "seed": 1} | change
    with pytest.raises(SpecnbError, match=said):
        specnb.verify_logits(**arguments)


def test_strict_validation_reads_every_row():
    draft, seed = [[1, 2], [3, 4]], 1
    specnb.verify_logits(draft, BAD[:, :2], BAD, seed=seed, validate="raise")
    for value in (torch.nan, torch.inf):
        wrong = BAD.clone()
        wrong[1, 2, 0] = value
        with pytest.raises(SpecnbError, match=r"row 1, position 2: target_logits has a NaN or [+]inf"):
            specnb.verify_logits(draft, BAD[:, :2], wrong, seed=seed, validate="raise")
    dead = BAD[:, :2].clone()
    dead[0, 1] = -torch.inf
    with pytest.raises(SpecnbError, match=r"row 0, position 1: draft_logits has a NaN or [+]inf, or nothing but"):
        specnb.verify_logits(draft, dead, BAD, seed=seed, validate="raise")
    with pytest.raises(SpecnbError, match=r"row 0, position 0: token 1 has q = 0; expected a token drawn from q"):
        specnb.verify_logits(draft, BAD[:, :2], BAD, draft_sampling=Sampling(top_k=1), seed=seed, validate="raise")


@pytest.mark.parametrize(
    ("backend", "V"),
    [("numpy", 30), ("torch", 30), ("torch", 9000), pytest.param("triton", 30, marks=pytest.mark.triton)],
)
def test_a_broken_row_is_flagged_alone(backend, V):
    z = np.random.default_rng(9).normal(size=(4, 2, V)).astype(np.float32)
    draft, y = np.zeros((4, 1), int), z[:, :1].copy()
    clean = specnb.verify_logits(draft, y, z, seed=3, backend=backend)
    z[1], y[2, 0, 5] = -np.inf, np.nan
    verdict = specnb.verify_logits(draft, y, z, seed=3, backend=backend)
    assert verdict.status.tolist() == [0, Status.NONFINITE | Status.NO_MASS, Status.NONFINITE | Status.IMPOSSIBLE, 0]
    for row in (0, 3):
        assert verdict.tokens[row].tolist() == clean.tokens[row].tolist()
