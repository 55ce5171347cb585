"""Rows behind a known rejection need not be read: fewer bytes, and the same bits whenever it becomes known."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

pytest.importorskip("triton")
import triton
import triton.language as tl
from kernel_calls import DEVICE, interpreted, poisoned, run
from logit_calls import answers, batch, decide, drafted, inputs
from specnb_kernels import from_logits, masses

pytestmark = [pytest.mark.triton, interpreted]

B, G, V = 4, 3, 1100
SHAPE = {"stretch": 1, "splits": 2, "tile_splits": 2}


def programs(monkeypatch, order):
    """Make the interpreter run a grid's programs in the order of a key of (request, split, place)."""
    from triton.runtime.interpreter import interpreter_builder

    left, set_dim, set_idx = [], interpreter_builder.set_grid_dim, interpreter_builder.set_grid_idx

    def set_grid_dim(*dims):
        set_dim(*dims)
        left[:] = sorted(itertools.product(*map(range, dims)), key=order)

    monkeypatch.setattr(interpreter_builder, "set_grid_dim", set_grid_dim)
    monkeypatch.setattr(interpreter_builder, "set_grid_idx", lambda *_: set_idx(*left.pop(0)))


def shuffled(seed):
    """Return a key that shuffles."""
    rng = np.random.default_rng(seed)
    return lambda _: rng.random()


ORDERS = {
    "place by place, as a GPU starts them": lambda program: program[::-1],
    "the last place first": lambda program: (-program[2], *program[:2]),
    "shuffled": shuffled(0),
    "shuffled again": shuffled(1),
}


def steps_of(how):
    """Return a batch in which drafts end everywhere, and what its verdict needs besides."""
    filters = {"top_k": [0, 9, 40, 5]} if how == "filtered" else {}
    b = batch(21, B, G, 300 if filters else V, torch.bfloat16, **filters)
    if how == "ragged":
        b |= {"lengths": np.array([3, 0, 2, 1]), "onehot": np.array([False, True, False, True])}
    if how == "one-hot":
        b |= {"y": None}
    if how == "uniforms":
        b |= {"seed": None, "uniforms": np.random.default_rng(2).random((B, G + 1))}
    return b


HOW = ["soft", "ragged", "one-hot", "uniforms", "filtered"]


@pytest.mark.parametrize(("how", "order"), [*itertools.product(HOW[:2], ORDERS), *zip(HOW[2:], ORDERS, strict=False)])
def test_when_it_becomes_known_changes_nothing(monkeypatch, how, order):
    b = steps_of(how)
    programs(monkeypatch, ORDERS[order])
    assert run(poisoned(from_logits.launches(*inputs(b), **SHAPE))) == answers(b)


def touched(monkeypatch, b, order):
    """Return the bytes that a verdict touches."""
    from specnb_kernels.touched import counter

    with monkeypatch.context() as patch, counter() as total:
        programs(patch, order)
        assert decide(b, **SHAPE) == answers(b)
    return total[0]


def test_bytes_fall_by_the_rows_that_are_spared(monkeypatch):
    """Those of z and of y behind the rejection of each request, and a little with them: forms and sums of tiles."""
    b = drafted(batch(22, B, G, V, torch.bfloat16, far=1.5))
    n = np.array(answers(b)[1])
    assert len(set(n.tolist())) >= 3
    early, late = (touched(monkeypatch, b, order) for order in itertools.islice(ORDERS.values(), 2))
    spared = 2 * V * (2 * (G - n)[n < G] - 1).sum()
    assert spared <= late - early <= 1.05 * spared


def test_only_the_rule_token_spares_rows():
    for rule, known in (("token", True), ("block", False), ("coupled", False)):
        first = from_logits.launches(*inputs(batch(23, 1, 2, 9), rule), stretch=1)[0]
        assert (first.arguments["known"] is not None) is known


@pytest.mark.parametrize("seed", range(2))
def test_what_is_kept_between_launches_needs_no_clearing(monkeypatch, seed):
    """Stale rejections of other launches, also of a later one, tell nothing; pairs always meet twice."""
    programs(monkeypatch, shuffled(seed))
    kept = {"known": torch.tensor([3, 2, 2**62, 1], device=DEVICE)}
    kept |= {"met": torch.full((B * G,), 2**31 - 2 if seed else 0, dtype=torch.int32, device=DEVICE)}
    for how in ("ragged", "soft"):
        b = steps_of(how)
        first, *others = poisoned(from_logits.launches(*inputs(b), **SHAPE))
        assert run([first._replace(arguments=first.arguments | kept), *others]) == answers(b)
        assert not (kept["met"] % 2).any()


@triton.jit
def _too_soon(known, launch, position, G):
    """Leave out every row behind the first pair."""
    return tl.minimum(position, 1) < 1


def test_a_row_that_is_spared_too_soon_is_missed(monkeypatch):
    b = batch(24, 2, 2, 300, far=0.01)  # both drafts pass
    monkeypatch.setattr(masses, "may_decide", _too_soon)
    assert run(poisoned(from_logits.launches(*inputs(b), **SHAPE))) != answers(b)
