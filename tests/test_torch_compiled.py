"""torch.compile: a verdict is one opaque operator with the same result, and a rule's law is never compiled."""

from __future__ import annotations

import numpy as np
import pytest
import regimes
import torch

import specnb
from specnb import rules


def tensors_of(regime):
    """Return draft, q, p and one seed per row of a regime, as tensors."""
    b = regimes.tensors(regime(np.random.default_rng(2), 129))
    return [b[k] for k in ("draft", "q", "p")], torch.arange(len(b["draft"]))


@pytest.mark.parametrize("rule", ["token", "block", "match", "coupled"])
def test_compiled_verdicts_are_the_same(rule):
    def step(rows, seeds):
        verdict = specnb.verify(*rows, rule=rule, seed=seeds, position=4)
        return verdict.tokens, verdict.num_accepted, verdict.status

    rows, seeds = tensors_of(regimes.near)
    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    for ours, theirs in zip(compiled(rows, seeds), step(rows, seeds), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("sampler", regimes.FUNCTIONS)
def test_the_operator_fits_its_declaration(sampler):
    (draft, q, p), seeds = tensors_of(regimes.near)
    arguments = (draft, q, p, None, None, 0, seeds, 7, None, None, sampler)
    torch.library.opcheck(torch.ops.specnb.verify, arguments, test_utils=("test_schema", "test_faketensor"))


def test_a_law_is_never_compiled():
    compiling = []

    def law(*arguments):
        compiling.append(torch.compiler.is_compiling())
        return rules.token(*arguments)

    def step(rows, seeds):
        return 2 * specnb.verify(*rows, rule=rules.Rule("mine", law, "this test", lossless=True), seed=seeds).tokens

    rows, seeds = tensors_of(regimes.near)
    expected = step(rows, seeds)
    assert torch.equal(torch.compile(step, backend="aot_eager")(rows, seeds), expected)
    assert compiling == [False, False]
    torch.compiler.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported, match=r"torch\.compiler"):
        torch.compile(step, backend="aot_eager", fullgraph=True)(rows, seeds)
