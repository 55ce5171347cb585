"""The exact law of the backends' arithmetic: every verdict is what it counts, and it is as close as is claimed."""

from __future__ import annotations

import itertools
from fractions import Fraction as F

import numpy as np
import pytest
import torch

import specnb
from specnb import laws
from specnb.backends.numpy import ACCEPTING, FINAL, pick, weights
from specnb.backends.numpy_words import words
from specnb.errors import SpecnbError

BACKENDS = ["numpy", "torch"]
UNIFORM, WORD = F(1, 2**53), F(1, 2**64)

# The bar of the package for a vocabulary of 128,256 ids.
BAR = 1e-13


def bound(V):
    """Return what arithmetic may cost in total variation, at a position whose draft is drawn too.

    2^-53 for accepting and as much for the subtraction p − q; V·2^-62 for each of two truncations, of q's masses and
    of the residual's (over its own mass, but drawn from only that often); V·2^-65 for each of two picks.
    """
    return 2 * 2.0**-53 + 2 * V * (2.0**-62 + 2.0**-65)


def _rows(seed, V, G=1, dtype=np.float64, concentration=0.5):
    rng = np.random.default_rng(seed)
    p, q = rng.dirichlet(np.full(V, concentration), (2, G + 1)).astype(dtype)
    return rng.integers(V, size=G), q[:G], p


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_acceptance_flips_where_the_law_says(backend, dtype):
    """Of two neighbouring uniforms the last counted one accepts and the next one rejects, wherever there are two."""
    paths = [_rows(seed, 3, dtype=dtype) for seed in range(500)]
    draft, q, p = (np.stack(arrays) for arrays in zip(*paths, strict=True))
    counts = (laws.implemented_law(draft, q, p).lengths[:, 1] / UNIFORM).astype(np.int64)
    between = (counts > 0) & (counts < 2**53)
    assert between.sum() > 200
    for offset, accepted in ((-1, 1), (0, 0)):
        uniforms = np.stack([(counts + offset) * 2.0**-53, np.full(500, 0.5)], axis=1)[between]
        verdict = specnb.verify(draft[between], q[between], p[between], uniforms=uniforms, backend=backend)
        assert (verdict.num_accepted == accepted).all()


def test_rounding_decides_some_of_these_flips():
    """The count isn't ceil(2^53·p/q) throughout: the product is rounded, and may be what p is."""
    off = 0
    for seed in range(300):
        draft, q, p = _rows(seed, 3)
        accepted = laws.implemented_law(draft, q, p).lengths[1]
        exact = min(F(1), F(float(p[0, draft[0]])) / F(float(q[0, draft[0]])))
        assert abs(accepted - exact) < UNIFORM
        off += accepted < exact
    assert off > 10


@pytest.mark.parametrize("n", [0, 1])
def test_words_pick_what_the_law_counts(n):
    """The last word of each token and the first of the next, for masses with zeros among them."""
    for seed in range(50):
        draft, q, p = _rows(seed, 8, concentration=0.3)
        counts = [int(x / WORD) for x in laws.implemented_law(draft, q, p).correction[n]]
        assert sum(counts) == 2**64
        masses = weights(np.maximum(p[0] - q[0], 0) if n == 0 else p[1])[None]
        for v, end in enumerate(itertools.accumulate(counts)):
            if counts[v]:
                for word in (end - counts[v], end - 1):
                    assert pick(masses, np.array([word], np.uint64))[0] == [v]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("onehot", [False, True])
def test_seeds_do_what_the_law_counts(backend, onehot):
    """From their words alone, 2,000 seeded verdicts of two drafts are foretold by the counts."""
    B, draft = 2000, np.array([0, 1])
    p = np.array([[0.3, 0.4, 0.3], [0.5, 0.2, 0.3], [0.1, 0.6, 0.3]])
    q = None if onehot else np.array([[0.5, 0.3, 0.2], [0.2, 0.5, 0.3]])
    law = laws.implemented_law(draft, q, p)
    seeds = np.arange(B)
    word = words(seeds, 3, [(0, ACCEPTING), (1, ACCEPTING), (0, FINAL)], B).tolist()
    rows = [None if a is None else np.repeat(a[None], B, axis=0) for a in (draft, q, p)]
    tokens = specnb.verify(*rows, seed=seeds, position=3, backend=backend).tokens.tolist()
    kept = [int((1 - law.lengths[0]) / UNIFORM), int(law.lengths[2] / (1 - law.lengths[0]) / UNIFORM)]
    ends = [list(itertools.accumulate(int(x / WORD) for x in correction)) for correction in law.correction]
    seen = set()
    for row, accept in zip(tokens, word, strict=True):
        n = 0 if accept[0] >> 11 >= kept[0] else 1 if accept[1] >> 11 >= kept[1] else 2
        final = sum(end <= accept[2] for end in ends[n])
        assert row == [*draft[:n], final] + [-1] * (2 - n)
        seen.add(n)
    assert seen == {0, 1, 2}


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("V", [1, 2, 7, 300])
def test_laws_are_laws_and_near_the_exact_ones(V, dtype):
    draft, q, p = _rows(V, V, G=3, dtype=dtype)
    law, fractions = laws.implemented_law(draft, q, p), np.frompyfunc(F, 1, 1)
    exact = laws.law(draft, fractions(q.astype(float)), fractions(p.astype(float)))
    assert law.lengths.sum() == 1
    assert (law.correction.sum(1) == 1).all()
    assert laws.total_variation(law.lengths, exact[0]) < 3 * UNIFORM
    assert all(law.rounding < bound(V))
    for n in range(3):
        mass = np.maximum(p[n].astype(float) - q[n], 0).sum()
        if mass:
            assert laws.total_variation(law.correction[n], exact[1][n]) < bound(V) / mass


def _emitted_exactly(q, p):
    """Return the law of one position's token in Fractions, by the formulas of the token rule on rows as they are."""
    q, p = ([F(float(x)) for x in row] for row in (q, p))
    rest = [max(x - y, 0) for x, y in zip(p, q, strict=True)]
    rest = rest if any(rest) else p
    drawn = [y / sum(q) for y in q]
    kept = [d * min(F(1), x / y) if y else F(0) for d, x, y in zip(drawn, p, q, strict=True)]
    return np.array([k + (1 - sum(kept)) * r / sum(rest) for k, r in zip(kept, rest, strict=True)])


def _emitted_by_counts(q, p):
    """Return the same as implemented, added up over every draft from the laws of single paths."""
    V, law = len(p), np.full(len(p), F(0))
    drawn = laws.implemented_law([], np.zeros((0, V)), q[None]).correction[0]  # a bonus is picked as a draft is
    for x in range(V):
        path = laws.implemented_law([x], q[None], np.stack([p, p]))
        law += drawn[x] * path.lengths[0] * path.correction[0]
        law[x] += drawn[x] * path.lengths[1]
    return law


@pytest.mark.parametrize("kind", ["random", "same", "disjoint", "scaled", "float32"])
def test_distances_are_those_of_the_emitted_law(kind):
    _, q, p = _rows(3, 6, dtype=np.float32 if kind == "float32" else np.float64)
    q, p = q[0], p[0]
    if kind == "same":
        q = p
    if kind == "disjoint":
        q, p = q * [1, 1, 1, 0, 0, 0], p * [0, 0, 0, 1, 1, 1]
    if kind == "scaled":
        p = p * 0.999
    found, emitted = laws.implemented_law([0], q[None], np.stack([p, p])), _emitted_by_counts(q, p)
    target = np.array([F(float(x)) for x in p])
    assert found.rounding.tolist() == [laws.total_variation(emitted, _emitted_exactly(q, p))]
    assert found.from_target.tolist() == [laws.total_variation(emitted, target / target.sum())]
    assert (found.from_target[0] > 1e-5) == (kind == "scaled")


@pytest.mark.parametrize("spread", [0.5, 6.0])
def test_128256_ids_in_float32(spread):
    V = 128_256
    logits = spread * torch.randn(2, 2, V, generator=torch.Generator().manual_seed(int(spread)))
    q, p = logits.softmax(-1)
    law = laws.implemented_law([17], q[:1], p)
    assert law.rounding[0] < bound(V) < BAR
    assert law.rounding[0] < law.from_target[0] < 1e-6
    assert law.correction.sum() == 2
    assert law.lengths.sum() == 1


def test_128256_ids_in_float64():
    """Masses that aren't multiples of 2^-62, so that each is truncated."""
    draft, q, p = _rows(0, 128_256, concentration=5)
    assert 1e-17 < laws.implemented_law(draft, q, p).rounding[0] < bound(128_256)


def test_identical_rows_and_an_empty_residual():
    """Everything is accepted, and the correction nobody sees is p's."""
    _, q, p = _rows(0, 5)
    law = laws.implemented_law([2], p[:1], p)
    assert law.lengths.tolist() == [0, 1]
    assert (law.correction[0] == laws.implemented_law([], q[:0], p[:1]).correction[0]).all()


def test_impossible_drafts_and_one_hot_ones():
    p = np.array([[0.25, 0.75], [0.5, 0.5]])
    assert laws.implemented_law([0], np.array([[0.0, 1.0]]), p).lengths.tolist() == [1, 0]
    law = laws.implemented_law([0], None, p)
    assert law.lengths.tolist() == [F(3, 4), F(1, 4)]
    assert law.correction.tolist() == [[0, 1], [F(1, 2), F(1, 2)]]
    assert law.rounding.tolist() == law.from_target.tolist() == [0]


def test_a_batch_is_its_rows():
    paths = [_rows(seed, 4, G=2) for seed in range(3)]
    batch = laws.implemented_law(*(np.stack(arrays) for arrays in zip(*paths, strict=True)))
    for b, path in enumerate(paths):
        alone = laws.implemented_law(*path)
        for field in ("lengths", "correction", "rounding", "from_target"):
            assert (getattr(batch, field)[b] == getattr(alone, field)).all()
    assert repr(batch).startswith("ImplementedLaw(object [3, 3], rounding <= ")


ROW = [0.5, 0.5]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (([2], [ROW], [ROW] * 2), r"draft is \[2\]; expected ids in 0 … 1"),
        (([-1], [ROW], [ROW] * 2), r"draft is \[-1\]; expected ids in 0 … 1"),
        (([0], [ROW], [ROW]), r"draft is int64 \[1\], q float64 \[1, 2\] and p float64 \[1, 2\]; expected draft \[G\]"),
        (([0], [[1.0]], [ROW] * 2), r"q float64 \[1, 1\] and p float64 \[2, 2\]; expected"),
        ((0, [ROW], [ROW] * 2), r"draft is int64 \[\], .*expected draft \[G\]"),
        (([0], [[F(1), F(0)]], [ROW] * 2), "q holds Fractions; expected floats"),
        (([0], [[0.0, 0.0]], [ROW] * 2), "q has rows of sum 0 to 0; expected about 1"),
        (([0], [ROW], [ROW, [1.0, 1.0]]), "p has rows of sum 1 to 2; expected about 1"),
        (([0], [ROW], [ROW, [np.nan, 1.0]]), r"entry \(1, 0\) of p is nan"),
    ],
)
def test_errors_say_what_came(arguments, sentence):
    with pytest.raises(SpecnbError, match=sentence):
        laws.implemented_law(*arguments)
