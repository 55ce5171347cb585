"""What only the kernels have: splits that arrive in any order, a workspace, layouts, unwritten outputs.

That they agree with the other backends is in test_agreement.py. Without a GPU the interpreter runs one program
after the other: that says nothing about programs that run at once.
"""

from __future__ import annotations

import numpy as np
import pytest
import regimes
import torch

triton = pytest.importorskip("triton")
import triton.language as tl  # noqa: E402  after the skip
from kernel_calls import (  # noqa: E402
    DEVICE,
    FUNCTIONS,
    TYPES,
    V,
    answers,
    case,
    decide,
    inputs,
    interpreted,
    poisoned,
    run,
    shuffled,
    types_agree,
)
from specnb_kernels import arithmetic, launch, operators  # noqa: E402

from specnb.backends import numpy as reference  # noqa: E402

pytestmark = pytest.mark.triton


@pytest.mark.parametrize("splits", [1, 2, 4, 64])
@pytest.mark.parametrize("regime", [regimes.mixed, regimes.padded, regimes.far], ids=lambda r: r.__name__)
def test_splits_never_change_a_result(regime, splits):
    b = case(regime, rows=2)  # 64 splits are 64 programs a row
    assert decide(b, splits=splits) == answers(b)


@pytest.mark.parametrize("regime", [regimes.broken, regimes.shifted, regimes.match], ids=lambda r: r.__name__)
def test_fallbacks_and_faults_cross_splits(regime):
    assert decide(case(regime), splits=4) == answers(case(regime))


@pytest.mark.parametrize(("narrow", "splits"), [("q", 1), ("q", 4), ("p", 4)])
def test_widths_that_end_in_different_tiles(narrow, splits):
    b = regimes.batch(np.random.default_rng(2), 4, 2, V, 3.0)
    b[narrow] = b[narrow][..., :600].copy()
    b["draft"] = b["draft"] % 600
    assert decide(b, splits=splits) == answers(b)


@pytest.mark.parametrize("place", [0, 511, 512, V - 1])
@pytest.mark.parametrize("name", ["p", "q"])
def test_one_bad_element_is_seen_from_any_split(name, place):
    b = regimes.batch(np.random.default_rng(3), 1, 1, V, 1.0)
    b |= {"draft": np.array([[1000]]), "seed": None, "uniforms": np.array([[0.5, 0.5]])}
    b["p"][0, 0, 1000] = 0.0  # rejected
    b[name][0, 0, place] = np.inf
    _, (accepted,), (status,) = decide(b, splits=4)
    assert (accepted, status & 1) == (0, 1)


@pytest.mark.parametrize(
    ("p", "token", "status"),
    [
        ((0.5, 0.9, 0.7, 0.0), 1, 0),  # 2.1 with the rejected draft, which doesn't count
        ((0.5, 0.0, 0.0, 0.0), 0, 0),  # nothing but the rejected draft: p itself, the draft included
        ((0.5, 1.0, 1.0, 0.0), -1, 16),
        ((0.0, 1.5, 1.5, 1.0), -1, 16),  # weights of exactly 2^64 together, which is 0 in 64 bits
        ((0.0, 0.0, 0.0, 0.0), -1, 8),
    ],
)
@pytest.mark.parametrize("rule", ["token", "block"])
def test_masses_of_a_one_hot_rejection(rule, p, token, status):
    rows = np.array([[p, (0.25, 0.25, 0.25, 0.25)]])
    b = {"draft": np.array([[0]]), "q": None, "p": rows, "lengths": None, "onehot": None, "seed": None, "position": 0}
    b["uniforms"] = np.array([[0.9, 0.5]])
    assert decide(b, rule) == answers(b, rule) == [[[token, -1]], [0], [status]]


@interpreted
@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0), (2, 0, 3, 1), (1, 3, 0, 2)], ids=str)
def test_any_split_may_arrive_last(monkeypatch, order):
    b = case(regimes.far)
    ran = shuffled(monkeypatch, order)
    assert decide(b, splits=4) == answers(b)
    assert ran == list(order) * len(b["p"])


@pytest.mark.parametrize("gamma", [0, 1, 7, 8, 20])
def test_every_output_is_written_once_per_launch(gamma):
    b = regimes.batch(np.random.default_rng(gamma), 3, gamma, 300, 0.2)
    assert run(poisoned(operators.launches(*inputs(b), splits=2))) == answers(b)


@pytest.mark.parametrize("rounds", [3, 2**31 // 4 - 1])  # the second start is one launch before int32 wraps around
def test_arrival_counters_are_never_reset(rounds):
    """One workspace serves launches of different shapes, and is as good after each as it was before."""
    (step,) = operators.launches(*inputs(case(regimes.far)), splits=4)
    workspace = {name: step.arguments[name] for name in ("arrivals", "partials")}
    workspace["arrivals"].fill_(4 * rounds)
    for regime, width in ((regimes.far, V), (regimes.no_drafts, 3), (regimes.far, 2 * V)):
        b = case(regime, width, rows=4)
        (step,) = operators.launches(*inputs(b), splits=4)
        assert run([step._replace(arguments=step.arguments | workspace)]) == answers(b)
        assert workspace["arrivals"].remainder(4).tolist() == [0] * 4


@interpreted
def test_an_aborted_launch_leaves_nothing_behind(monkeypatch):
    b = case(regimes.far)
    with monkeypatch.context() as patch:
        shuffled(patch, (0, 1))  # the third split doesn't start
        with pytest.raises(Exception, match="out of range"):
            decide(b, splits=4)
    assert decide(b, splits=4) == answers(b)


@pytest.mark.parametrize("q_type", TYPES, ids=str)
@pytest.mark.parametrize("p_type", TYPES, ids=str)
def test_every_pair_of_types(p_type, q_type):
    assert types_agree("token", p_type, q_type)


def test_layouts_that_allow_16_byte_loads():
    rows = torch.zeros(2, 3, 64)
    assert launch.alignment(rows) == launch.alignment(rows[:, 1:]) == launch.alignment(rows[..., 4:9]) == 4
    assert launch.alignment(rows.half()) == 8
    assert launch.alignment(rows[:, :1].expand(2, 3, 64)) == 4
    for other in (None, rows[..., 1:], rows[..., ::2], rows.transpose(0, 2), torch.zeros(2, 3, 63)):
        assert launch.alignment(other) == 1


def test_splits_are_powers_of_two_and_fill_the_device():
    choices = [launch.default_splits(rows, tiles) for rows in (1, 8, 65, 300, 10**6) for tiles in (1, 3, 126, 2048)]
    assert set(choices) <= {1, 2, 4, 8, 16, 32, 64}
    assert launch.default_splits(1, 251) == 64
    assert launch.default_splits(256, 251) == 16


@pytest.mark.parametrize("per_row", [True, False])
def test_draw(per_row):
    rng = np.random.default_rng(4)
    probs = regimes.softmax(rng.normal(size=(5, 700)))
    probs[3] = 0
    seed, position = (rng.integers(0, 2**62, 5), rng.integers(0, 2**40, 5)) if per_row else (11, 2**33 + 1)
    expected = [reference.draw(probs, seed, position, index, purpose).tolist() for index, purpose in ((0, 0), (3, 2))]
    on_device = [torch.from_numpy(a).to(DEVICE) if isinstance(a, np.ndarray) else a for a in (probs, seed, position)]
    drawn = [operators.draw(*on_device, index, purpose).tolist() for index, purpose in ((0, 0), (3, 2))]
    assert drawn == expected
    assert drawn[0][3] == -1


def test_a_row_of_q_without_ids_is_soft():
    p = torch.tensor([[[0.5, 0.5], [0.5, 0.5]]], device=DEVICE)
    draft = torch.zeros(1, 1, dtype=torch.int64, device=DEVICE)
    _, accepted, status = operators.verify(draft, torch.zeros(1, 1, 0, device=DEVICE), p, seed=1)
    assert (accepted.item(), status.item()) == (0, 2)


@pytest.mark.parametrize("rule", FUNCTIONS)
def test_the_operator_is_sound(rule):
    """PyTorch's own check: the schema tells the truth about mutation and aliasing, fake shapes match."""
    torch.library.opcheck(operators.triton_verify, tuple(inputs(case(regimes.mixed, 9, rows=2), rule)))


@triton.jit
def words_kernel(out, seed: tl.int64, counter: tl.int64):
    """Store the word of key `seed` whose four counter words are all `counter`."""
    index = tl.zeros((1,), tl.int64) + counter
    word = arithmetic.word(seed, counter, counter, index, counter)
    tl.store(out + tl.arange(0, 1), word.to(tl.int64, bitcast=True))


@pytest.mark.parametrize(("bits", "word"), [(0, 0x6627E8D5E169C58D), (-1, 0x408F276D41C83B0E)])
def test_known_words(bits, word):
    """Random123's known answers for Philox4x32-10: all bits of key and counter 0, and all 1."""
    out = torch.zeros(1, dtype=torch.int64, device=DEVICE)
    words_kernel[(1,)](out, bits, bits)
    assert out.item() % 2**64 == word
