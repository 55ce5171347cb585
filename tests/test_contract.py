"""The arithmetic contract's golden values and the generator's published answers, on every backend."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import specnb
from specnb.backends import numpy_words, torch_words
from specnb.backends.philox import philox_word
from specnb.verdict import Status

VECTORS = json.loads((Path(__file__).parent / "vectors" / "contract.json").read_text())
BACKENDS = ["numpy", "torch", pytest.param("triton", marks=pytest.mark.triton)]
ALL_ONES = 2**32 - 1

# Random123's known answers for Philox4x32-10 (Salmon et al. 2011): (key, counter words, first two output words).
KNOWN_WORDS = [
    (0, (0, 0, 0, 0), 0x6627E8D5E169C58D),
    (2**64 - 1, (ALL_ONES,) * 4, 0x408F276D41C83B0E),
]


def test_contract_version():
    assert VECTORS["contract"] == specnb.CONTRACT == 1


@pytest.mark.parametrize(("key", "counter", "word"), KNOWN_WORDS)
def test_known_words(key, counter, word):
    assert philox_word(key, *counter) == word
    assert int(numpy_words.philox(np.uint64(key), *counter)) == word


def test_the_counter_wraps_in_numpy():
    key, stream, positions = 2**62 + 977, 2**31 + 5, np.arange(2**32 - 50, 2**32 + 50)  # the counter wraps
    expected = [philox_word(key, position, 3, 1, stream) for position in positions.tolist()]
    assert numpy_words.philox(key, positions, 3, 1, stream).tolist() == expected


@pytest.mark.parametrize("count", [10, 100])  # in Python's integers, and in arrays
@pytest.mark.parametrize("words", [
    lambda *arguments: numpy_words.words(*arguments),
    lambda *arguments: torch_words.words(*map(to_tensor, arguments), torch.device("cpu")),
], ids=["numpy", "torch"])  # fmt: skip
def test_words_of_requests(words, count):
    pairs = [(3, 1), (0, 2)]
    positions, seeds = np.arange(2**32 - 5, 2**32 - 5 + count), np.arange(count) + 2**61
    one_seed, own_seeds = words(2**62 + 977, positions, pairs, count), words(seeds, 7, pairs, count)
    for b, position in enumerate(positions.tolist()):
        assert [w % 2**64 for w in one_seed[b].tolist()] == [philox_word(2**62 + 977, position, *c, b) for c in pairs]
        assert [w % 2**64 for w in own_seeds[b].tolist()] == [philox_word(2**61 + b, 7, *c, 0) for c in pairs]


def to_tensor(value):
    return torch.from_numpy(value) if isinstance(value, np.ndarray) else value


@pytest.mark.parametrize("count", [3, 100])
def test_high_products(count):
    rng = np.random.default_rng(0)
    a, b = rng.integers(0, 2**64, count, np.uint64), rng.integers(0, 2**63, count, np.uint64)
    expected = [int(x) * int(y) >> 64 for x, y in zip(a, b, strict=True)]
    assert numpy_words.multiply_high(a, b).tolist() == expected
    tensors = torch.from_numpy(a.view(np.int64)), torch.from_numpy(b.view(np.int64))
    assert torch_words.multiply_high(*tensors).tolist() == expected


@pytest.mark.parametrize("rule", ["token", "match", "block", "coupled"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_verdicts(backend, rule):
    cases = [case for case in VECTORS["verdicts"] if rule in case]
    assert len(cases) == (56 if rule == "coupled" else 72)  # coupled takes seeds only
    for case in cases:
        expected = case[rule]
        draft = np.array([expected.get("draft", case["draft"])], np.int64)
        G, V = draft.shape[1], len(case["p"][0])
        q = None if case["q"] is None else np.array(case["q"], np.float32).reshape(1, G, V)
        p = np.array([case["p"]], np.float32)
        random = {"seed": [case["seed"]], "position": case["position"]}
        if case["uniforms"] is not None:
            random = {"uniforms": np.array([case["uniforms"]])}
        verdict = specnb.verify(draft, q, p, rule=rule, backend=backend, **random)
        assert verdict.tokens[0].tolist() == expected["tokens"], case["kind"]
        assert verdict.num_accepted.tolist() == [expected["num_accepted"]], case["kind"]
        if case["kind"] == "nan":
            assert verdict.status[0] & Status.NONFINITE or np.isfinite(p[0, : expected["num_accepted"] + 1]).all()


@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_probabilities(backend):
    assert VECTORS["logits"]
    for case in VECTORS["logits"]:
        row = np.array(case["logits"], np.float32)
        result = specnb.probabilities(row, specnb.Sampling(**case["sampling"]), backend=backend)
        assert [float(x).hex() for x in result] == case["probabilities"], case["sampling"]
