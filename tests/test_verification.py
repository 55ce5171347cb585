"""The verify API: what it accepts, what it reports, what it refuses; CASES 1 to 13 of real decoders' faults."""

from __future__ import annotations

import numpy as np
import pytest
import regimes
import torch

import specnb
from specnb import SpecnbError, Status

BACKENDS = ["numpy", "torch", pytest.param("triton", marks=pytest.mark.triton)]
Q = np.array([[0.2, 0.3, 0.5]])
P = np.array([[0.5, 0.3, 0.2], [0.0, 1.0, 0.0]])


def plain(rng=None, B=3, G=3, V=11):
    b = regimes.batch(rng or np.random.default_rng(1), B, G, V, 0.5)
    return b["draft"], b["q"], b["p"]


@pytest.mark.parametrize("backend", BACKENDS)
def test_boundaries_of_acceptance(backend):
    """u = 0 with p(x) = 0 rejects; ratio 1 with u = 1 − 2^-24 accepts; the ratio itself rejects."""

    def accepted(u, q, p):
        rows = np.array([[p, 1 - p], [0.0, 1.0]])
        return int(specnb.verify([0], [[q, 1 - q]], rows, uniforms=[u, 0.5], backend=backend).num_accepted)

    assert accepted(0.0, 0.5, 0.0) == 0
    assert accepted(1 - 2.0**-24, 0.5, 0.5) == 1
    assert accepted(0.5, 0.5, 0.25) == 0
    assert accepted(0.5 - 2.0**-53, 0.5, 0.25) == 1


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_empty_residual_falls_back_to_p(backend):
    rows = np.array([[0.25, 0.75], [0.5, 0.5]], np.float32)
    q = np.nextafter(rows[:1], np.float32(2))
    verdict = specnb.verify([0], q, rows, uniforms=[1 - 2.0**-53, 0.9], backend=backend)
    assert (verdict.tokens.tolist(), verdict.num_accepted, verdict.status) == ([1, -1], 0, 0)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_broken_row_is_flagged_alone(backend):
    draft, q, p = plain(B=4)
    clean = specnb.verify(draft, q, p, seed=3, backend=backend)
    p[1] = np.nan
    q[2] = np.nan
    verdict = specnb.verify(draft, q, p, seed=3, backend=backend)
    assert verdict.status[1] == Status.NONFINITE | Status.NO_MASS
    assert verdict.status[2] == Status.NONFINITE | Status.IMPOSSIBLE
    assert verdict.tokens[1].tolist() == [-1] * 4
    for row in (0, 3):
        assert verdict.status[row] == 0
        assert verdict.tokens[row].tolist() == clean.tokens[row].tolist()


@pytest.mark.parametrize("backend", BACKENDS)
def test_impossible_and_foreign_drafts_are_never_accepted(backend):
    q = np.array([[[0.0, 1.0]]] * 4)
    p = np.array([[[1.0, 0.0], [0.5, 0.5]]] * 4)
    verdict = specnb.verify([[0], [2], [-5], [-1]], q, p, seed=1, backend=backend)
    assert verdict.num_accepted.tolist() == [0, 0, 0, 0]
    assert verdict.status.tolist() == [Status.IMPOSSIBLE, Status.OUT_OF_RANGE, Status.OUT_OF_RANGE, 0]
    assert verdict.tokens[:, 0].tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_tiny_residual_keeps_its_law(backend):
    """A residual mass of 1e-6 on two tokens, 1 : 3; an epsilon floor would leak onto the others."""
    q = np.array([[0.5, 0.25, 0.25]])
    p = np.array([[0.5 - 2.0**-20, 0.25 + 2.0**-22, 0.25 + 3 * 2.0**-22], [1.0, 0, 0]])
    uniforms = np.column_stack([np.full(8, 1 - 2.0**-53), (np.arange(8) + 0.5) / 8])
    tokens = specnb.verify(np.zeros((8, 1), int), np.repeat(q[None], 8, 0), np.repeat(p[None], 8, 0),
                           uniforms=uniforms, backend=backend).tokens[:, 0]  # fmt: skip
    assert tokens.tolist() == [1, 1, 2, 2, 2, 2, 2, 2]


@pytest.mark.parametrize("backend", BACKENDS)
def test_logits_for_probabilities_are_noticed(backend):
    logits = np.full((1, 1, 8), 1.5)
    verdict = specnb.verify(np.zeros((1, 0), int), None, logits, seed=1, backend=backend)
    assert (verdict.tokens.tolist(), verdict.status.tolist()) == ([[-1]], [Status.EXCESS_MASS])


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_request_does_not_depend_on_its_batch(backend):
    """Permuted, split, grown, padded to more drafts, next to a neighbour without drafts."""
    draft, q, p = plain(B=5)
    seeds, position = np.arange(5) + 70, np.arange(5) * 3
    whole = specnb.verify(draft, q, p, seed=seeds, position=position, backend=backend)
    order = np.array([3, 0, 4])
    part = specnb.verify(draft[order], q[order], p[order], seed=seeds[order], position=position[order], backend=backend)
    assert part.tokens.tolist() == whole.tokens[order].tolist()

    longer = np.concatenate([draft, np.full((5, 2), -1)], 1)
    q2, p2 = (np.concatenate([a, np.full((5, 2, 11), np.nan, np.float32)], 1) for a in (q, p))
    lengths = np.array([3, 0, 3, 3, 1])
    grown = specnb.verify(longer, q2, p2, lengths=lengths, seed=seeds, position=position, backend=backend)
    for row in (0, 2, 3):
        assert grown.tokens[row, :4].tolist() == whole.tokens[row].tolist()
    assert grown.num_accepted[1] == 0
    assert (grown.num_accepted <= lengths).all()
    assert (grown.status == 0).all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_distinct_one_hot_rows_show_every_position(backend):
    """p is one-hot at another token in each row: no off-by-one row, no bonus after a rejection."""
    p = np.eye(6)[None, [3, 1, 4, 5]].repeat(4, 0)
    draft = np.array([[3, 1, 4], [3, 1, 0], [3, 0, 4], [0, 1, 4]])
    verdict = specnb.verify(draft, None, p, seed=1, backend=backend)
    assert verdict.tokens.tolist() == [[3, 1, 4, 5], [3, 1, 4, -1], [3, 1, -1, -1], [3, -1, -1, -1]]


@pytest.mark.parametrize("backend", BACKENDS)
def test_inputs_are_unchanged(backend):
    b = regimes.mixed(np.random.default_rng(4), 33)
    before = {k: v.copy() for k, v in b.items() if isinstance(v, np.ndarray)}
    for array in before:
        b[array].flags.writeable = False
    specnb.verify(**b, backend=backend)
    assert all((b[k] == v).all() for k, v in before.items())


@pytest.mark.parametrize("backend", BACKENDS)
def test_empty_batches_and_no_drafts(backend):
    nothing = specnb.verify(np.zeros((0, 2), int), np.zeros((0, 2, 5)), np.zeros((0, 3, 5)), seed=1, backend=backend)
    assert (nothing.tokens.shape, nothing.num_accepted.shape, nothing.status.shape) == ((0, 3), (0,), (0,))
    bonus = specnb.verify([], None, [[0.0, 1.0]], seed=1, backend=backend)
    assert (bonus.tokens.tolist(), int(bonus.num_accepted)) == ([1], 0)


def test_one_seed_gives_each_row_its_own_stream():
    draft, q, p = (np.repeat(a[:1], 64, 0) for a in plain())
    assert len({tuple(t) for t in specnb.verify(draft, q, p, seed=3).tokens.tolist()}) > 1
    keys = specnb.verify(draft, q, p, seed=np.full(64, 3))
    assert len({tuple(t) for t in keys.tokens.tolist()}) == 1


def test_lists_arrays_and_tensors_agree_and_come_back_as_they_came():
    expected = specnb.verify([2], Q, P, uniforms=[0.39, 0.5])
    lists = specnb.verify([2], Q.tolist(), P.tolist(), uniforms=[0.39, 0.5])
    tensors = specnb.verify([2], torch.from_numpy(Q), torch.from_numpy(P), uniforms=[0.39, 0.5])
    crossed = specnb.verify([2], torch.from_numpy(Q), torch.from_numpy(P), uniforms=[0.39, 0.5], backend="numpy")
    assert isinstance(lists.tokens, np.ndarray)
    assert isinstance(tensors.tokens, torch.Tensor)
    assert isinstance(crossed.tokens, torch.Tensor)
    for verdict in (lists, tensors, crossed):
        assert verdict.tokens.tolist() == expected.tokens.tolist() == [2, 1]
    assert (expected.rule, expected.backend, expected.contract) == ("token", "numpy", 1)


def test_compiled_verdicts_are_the_same():
    draft, q, p = (torch.from_numpy(a) for a in plain(V=129))

    def step(draft, q, p, seeds):
        verdict = specnb.verify(draft, q, p, seed=seeds, position=4)
        processed = specnb.probabilities(p.log(), specnb.Sampling(temperature=0.5, top_p=0.9))
        drawn = specnb.draw(processed[:, 0], seed=seeds, position=4)
        return verdict.tokens, verdict.num_accepted, verdict.status, processed, drawn

    seeds = torch.tensor([5, 6, 7])
    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    for ours, theirs in zip(compiled(draft, q, p, seeds), step(draft, q, p, seeds), strict=True):
        assert torch.equal(ours, theirs)


def test_the_operator_fits_its_declaration():
    draft, q, p = (torch.from_numpy(a) for a in plain())
    arguments = (draft, q, p, None, None, 3, None, 7, None, None)
    torch.library.opcheck(torch.ops.specnb.verify, arguments, test_utils=("test_schema", "test_faketensor"))


def test_residual_is_the_law_of_the_final_token():
    rejected = specnb.verify([2], Q, P, uniforms=[0.5, 0.5])
    assert rejected.residual().tolist() == [1.0, 0.0, 0.0]
    assert specnb.verify([2], Q, P, uniforms=[0.0, 0.5]).residual().tolist() == [0.0, 1.0, 0.0]
    matched = specnb.verify([0], None, torch.from_numpy(P), uniforms=[0.6, 0.5])
    np.testing.assert_allclose(matched.residual(0), [0.0, 0.6, 0.4], rtol=1e-15)
    for row in (1, -1, 0.5, False, "a"):
        with pytest.raises(SpecnbError, match="is outside this verdict's batch"):
            matched.residual(row)
    heavy = specnb.verify([], None, [[3.0, 1.0, 1.0]], seed=1)
    assert (heavy.tokens.tolist(), heavy.residual().tolist()) == ([-1], [0.0, 0.0, 0.0])
    lost = specnb.verify([1], [[1.0, 0.0]], [[1.0, 1e-25], [1.0, 0.0]], seed=1)  # a residual below 2^-62 is none
    assert (lost.tokens.tolist(), lost.residual().tolist()) == ([0, -1], [1.0, 0.0])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"seed": None}, "exactly one of seed and uniforms is required, neither came"),
        ({"uniforms": np.zeros((3, 4))}, "both came"),
        ({"seed": -1}, "seed is -1; expected 0 <= seed"),
        ({"seed": 2**63}, "expected 0 <= seed"),
        ({"seed": [1, 2]}, r"seed is int64 \[2\]; expected one integer, or one per request: \[3\]"),
        ({"seed": [1, 2, -3]}, r"seed\[2\] is -3"),
        ({"seed": 1.5}, "seed is float64"),
        ({"seed": True}, "seed is True"),
        ({"position": -1}, "position is -1"),
        ({"lengths": [1, 2, 4]}, r"lengths\[2\] is 4; expected 0 <= lengths <= 3"),
        ({"onehot": [1, 0, 1]}, r"onehot is int64 \[3\]; expected bool \[3\]"),
        ({"draft": np.zeros((3, 3))}, r"draft is float64 \[3, 3\]; expected integers"),
        ({"draft": np.zeros((3, 2), int)}, "here p needs 3 rows per request and q 2"),
        ({"q": np.zeros((3, 3, 11), int)}, "q is int64"),
        ({"p": np.zeros((3, 4, 0), np.float32)}, "expected a vocabulary of 1"),
        ({"rule": "tokne"}, "tokne"),
        ({"rule": []}, "rule \\[\\] is unknown"),
        ({"seed": torch.tensor(True)}, "seed is True"),
        ({"seed": np.full(3, 2**63, np.uint64)}, "seed holds 9223372036854775808; expected integers below 2"),
        ({"seed": "a"}, "seed is <U1"),
        ({"position": None}, "position is object"),
        ({"draft": None}, "draft is object"),
        ({"draft": [[1], [1, 2], [3]]}, "draft is no array"),
        ({"q": np.zeros((3, 3, 0), np.float32)}, "expected a vocabulary of 1"),
        ({"p": np.ma.masked_array(np.ones((3, 4, 11)), True)}, "p is a masked array"),
        ({"p": torch.ones(3, 4, 11).to_sparse()}, "p is a tensor of layout torch.sparse_coo; expected a dense one"),
        ({"backend": ""}, "backend '' is unknown"),
        ({"backend": "cuda"}, "backend 'cuda' is unknown; expected one of numpy, torch, triton"),
        ({"validate": "maybe"}, "expected 'flag' or 'raise'"),
    ],
    ids=str,
)
@pytest.mark.parametrize("framework", [np.asarray, torch.from_numpy])
def test_bad_calls_say_what_was_wrong(framework, change, said):
    draft, q, p = plain()
    p = framework(p)
    with pytest.raises(SpecnbError, match=said):
        specnb.verify(**{"draft": draft, "q": q, "p": p, "seed": 1, **change})


def test_any_numpy_array_goes_with_tensors():
    draft, q, p = plain()
    expected = specnb.verify(draft, q, p, seed=np.arange(3)).tokens.tolist()
    flipped = np.ascontiguousarray(q[:, ::-1])[:, ::-1]  # a negative stride
    swapped, frozen = draft.astype(">i8"), np.arange(3)
    frozen.flags.writeable = False
    tensor = torch.from_numpy(p).requires_grad_()
    assert specnb.verify(swapped, flipped, tensor, seed=frozen).tokens.tolist() == expected
    assert specnb.verify(swapped, q.astype(">f8"), p.astype(">f8"), seed=frozen).tokens.tolist() == expected
    assert specnb.verify(draft, q, p, seed=frozen, lengths=3).tokens.tolist() == expected


def test_a_default_device_changes_nothing():
    draft, q, p = (torch.from_numpy(a) for a in plain())
    expected = specnb.verify(draft, q, p, seed=3).tokens.tolist()
    with torch.device("meta"):
        assert specnb.verify(draft, q, p, seed=3).tokens.tolist() == expected
        specnb.draw(specnb.probabilities(p[:, 0].log(), specnb.Sampling(0.5, top_p=0.5)), seed=3)


def test_a_rule_of_ones_own_is_decided_by_its_law_and_carries_its_label():
    token = specnb.rules.get("token")
    mine = specnb.rules.Rule("mine", token.law, "this test", lossless=False)
    verdict = specnb.verify([2], Q, P, seed=1, rule=mine)
    assert (verdict.rule, verdict.lossless) == ("mine", False)
    assert verdict.tokens.tolist() == specnb.verify([2], Q, P, seed=1).tokens.tolist()


def test_uniforms_need_their_dtype_and_shape():
    with pytest.raises(SpecnbError, match=r"uniforms are float64 \[1, 3\]; expected float64 \[1, 2\]"):
        specnb.verify([2], Q, P, uniforms=[0.1, 0.2, 0.3])


@pytest.mark.parametrize("framework", [np.asarray, torch.tensor])
@pytest.mark.parametrize(
    ("where", "value", "said"),
    [
        (("p", 1, 2, 3), np.nan, "row 1, position 2: p has a NaN or an infinity"),
        (("p", 0, 3, 1), -0.5, "row 0, position 3: p has the value -0.5"),
        (("p", 2, 0, 0), 1.0, "row 2, position 0: p sums to"),
        (("q", 2, 1, 4), np.inf, "row 2, position 1: q has a NaN or an infinity"),
        (("draft", 1, 1), 11, r"row 1, position 1: draft is 11; expected an id in 0 … 10"),
    ],
)
def test_validate_raise_reads_everything(framework, where, value, said):
    arrays = dict(zip(("draft", "q", "p"), plain(), strict=True))
    specnb.verify(**{k: framework(v) for k, v in arrays.items()}, seed=1, validate="raise")
    arrays[where[0]][where[1:]] = value
    with pytest.raises(SpecnbError, match=said):
        specnb.verify(**{k: framework(v) for k, v in arrays.items()}, seed=1, validate="raise")


def test_validate_raise_knows_impossible_drafts_and_skips_what_does_not_count():
    with pytest.raises(SpecnbError, match="token 0 has q = 0; expected a token drawn from q"):
        specnb.verify([0], [[0.0, 1.0]], [[0.5, 0.5]] * 2, seed=1, validate="raise")
    q, p = np.full((1, 2, 2), np.nan), np.full((1, 3, 2), np.nan)
    p[0, 0] = 0.5
    verdict = specnb.verify([[-1, 0]], q, p, seed=1, validate="raise")
    assert verdict.status.tolist() == [0]
    with pytest.raises(SpecnbError, match=r"row 0, position 1: uniform is 1\.0"):
        specnb.verify([2], Q, P, uniforms=[0.1, 1.0], validate="raise")


def test_a_backend_that_cannot_run_says_why(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SpecnbError, match="backend 'triton' can't run: "):
        specnb.verify([2], torch.from_numpy(Q), torch.from_numpy(P), seed=1, backend="triton")
    table = specnb.available_backends()
    assert [row.name for row in table] == ["numpy", "torch", "triton"]
    assert [row.available for row in table] == [True, True, False]
    assert table[2].reason
    assert "numpy    yes" in repr(table)
    assert "<td>triton</td><td>no</td>" in table._repr_html_()
