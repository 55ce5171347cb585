"""What only the kernel has: splits that arrive in any order, a workspace, layouts, unwritten outputs.

That it agrees with the other backends is in test_agreement.py. Without a GPU the interpreter runs one program
after the other: that says nothing about programs that run at once.
"""

from __future__ import annotations

import numpy as np
import pytest
import regimes
import torch

from specnb.arrays import to_torch
from specnb.backends import numpy as reference

triton = pytest.importorskip("triton")
import triton.language as tl  # noqa: E402  after the skip
from specnb_kernels import arithmetic, launch  # noqa: E402
from specnb_kernels.verify import verify_kernel  # noqa: E402

pytestmark = pytest.mark.triton
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
interpreted = pytest.mark.skipif(DEVICE == "cuda", reason="changes the interpreter's order of programs")

V = 1300  # three tiles of float32 rows as the GPU would cut them, the last one not full
SENTINEL = -77  # in memory that the kernel must write; no result is ever that


def inputs(b):
    """Return a batch of regimes.py as the inputs of launch.launch, purposes and index of a verdict included."""
    tensors = {k: to_torch(v).to(DEVICE) if isinstance(v, np.ndarray) else v for k, v in b.items()}
    seeds, seed = (tensors["seed"], 0) if isinstance(tensors["seed"], torch.Tensor) else (None, tensors["seed"] or 0)
    places, place = (tensors["position"], 0) if isinstance(b["position"], np.ndarray) else (None, b["position"])
    rows = [tensors[k] for k in ("draft", "q", "p", "lengths", "onehot")]
    return [*rows, seeds, places, tensors["uniforms"], seed, place, 0, 2]


def lists(result):
    """Return tokens, counts and status as lists."""
    return [a.tolist() for a in result]


def case(regime, width=V, seed=0):
    """Return one batch of a regime and the reference's answer."""
    b = regime(np.random.default_rng(seed), width)
    return b, regimes.answers(reference, b)


def shuffled(monkeypatch, order):
    """Make the interpreter run a row's splits in that order; return the list of the splits it will have run."""
    from triton.runtime.interpreter import interpreter_builder

    ran, original = [], interpreter_builder.set_grid_idx

    def set_grid_idx(x, y, z):
        ran.append(order[y])
        original(x, order[y], z)

    monkeypatch.setattr(interpreter_builder, "set_grid_idx", set_grid_idx)
    return ran


@pytest.mark.parametrize("splits", [1, 2, 4, 64])
@pytest.mark.parametrize("regime", [regimes.mixed, regimes.padded, regimes.far], ids=lambda r: r.__name__)
def test_splits_never_change_a_result(regime, splits):
    b, expected = case(regime)
    rows = 2  # of each regime: 64 splits are 64 programs a row
    b = {k: v[:rows] if isinstance(v, np.ndarray) else v for k, v in b.items()}
    result = launch.launch(*inputs(b), stretch=1, splits=splits)
    assert lists(result) == [a[:rows] for a in expected]


@pytest.mark.parametrize("regime", [regimes.broken, regimes.shifted, regimes.match], ids=lambda r: r.__name__)
def test_fallbacks_and_faults_cross_splits(regime):
    b, expected = case(regime)
    assert lists(launch.launch(*inputs(b), stretch=1, splits=4)) == expected


@pytest.mark.parametrize(("narrow", "splits"), [("q", 1), ("q", 4), ("p", 4)])
def test_widths_that_end_in_different_tiles(narrow, splits):
    b = regimes.batch(np.random.default_rng(2), 4, 2, V, 3.0)
    b[narrow] = b[narrow][..., :600].copy()
    b["draft"] = b["draft"] % 600
    assert lists(launch.launch(*inputs(b), stretch=1, splits=splits)) == regimes.answers(reference, b)


@pytest.mark.parametrize("place", [0, 511, 512, V - 1])
@pytest.mark.parametrize("name", ["p", "q"])
def test_one_bad_element_is_seen_from_any_split(name, place):
    b = regimes.batch(np.random.default_rng(3), 1, 1, V, 1.0)
    b |= {"draft": np.array([[1000]]), "seed": None, "uniforms": np.array([[0.5, 0.5]])}
    b["p"][0, 0, 1000] = 0.0  # rejected
    b[name][0, 0, place] = np.inf
    _, accepted, status = launch.launch(*inputs(b), stretch=1, splits=4)
    assert (accepted.item(), status.item() & 1) == (0, 1)


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
def test_masses_of_a_one_hot_rejection(p, token, status):
    rows = np.array([[p, (0.25, 0.25, 0.25, 0.25)]])
    b = {"draft": np.array([[0]]), "q": None, "p": rows, "lengths": None, "onehot": None, "seed": None, "position": 0}
    b["uniforms"] = np.array([[0.9, 0.5]])
    expected = [[[token, -1]], [0], [status]]
    assert lists(launch.launch(*inputs(b))) == regimes.answers(reference, b) == expected


@interpreted
@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0), (2, 0, 3, 1), (1, 3, 0, 2)], ids=str)
def test_any_split_may_arrive_last(monkeypatch, order):
    b, expected = case(regimes.far)
    ran = shuffled(monkeypatch, order)
    assert lists(launch.launch(*inputs(b), stretch=1, splits=4)) == expected
    assert ran == list(order) * len(b["p"])


@pytest.mark.parametrize("gamma", [0, 1, 7, 8, 20])
def test_every_output_is_written_once_per_launch(gamma):
    b = regimes.batch(np.random.default_rng(gamma), 3, gamma, 300, 0.2)
    arguments, grid, options = launch.arguments(*inputs(b), splits=2)
    written = ("tokens", "num_accepted", "status")
    for name in (*written, "partials"):
        arguments[name].fill_(SENTINEL)
    verify_kernel[grid](**arguments, **options)
    assert lists(arguments[name] for name in written) == regimes.answers(reference, b)


@pytest.mark.parametrize("rounds", [3, 2**31 // 4 - 1])  # the second start is one launch before int32 wraps around
def test_arrival_counters_are_never_reset(rounds):
    """One workspace serves launches of different shapes, and is as good after each as it was before."""
    b, _ = case(regimes.far)
    arguments, _, _ = launch.arguments(*inputs(b), stretch=1, splits=4)
    workspace = {name: arguments[name] for name in ("arrivals", "partials")}
    workspace["arrivals"].fill_(4 * rounds)
    for regime, width in ((regimes.far, V), (regimes.no_drafts, 3), (regimes.far, 2 * V)):
        b, expected = case(regime, width)
        b, expected = {k: v[:4] if isinstance(v, np.ndarray) else v for k, v in b.items()}, [a[:4] for a in expected]
        arguments, grid, options = launch.arguments(*inputs(b), stretch=1, splits=4)
        verify_kernel[grid](**arguments | workspace, **options)
        assert lists(arguments[name] for name in ("tokens", "num_accepted", "status")) == expected
        assert workspace["arrivals"].remainder(4).tolist() == [0] * 4


@interpreted
def test_an_aborted_launch_leaves_nothing_behind(monkeypatch):
    b, expected = case(regimes.far)
    with monkeypatch.context() as patch:
        shuffled(patch, (0, 1))  # the third split doesn't start
        with pytest.raises(Exception, match="out of range"):
            launch.launch(*inputs(b), stretch=1, splits=4)
    assert lists(launch.launch(*inputs(b), stretch=1, splits=4)) == expected


@pytest.mark.parametrize("q_type", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("p_type", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_every_pair_of_types(p_type, q_type):
    b = regimes.batch(np.random.default_rng(9), 3, 2, V, 2.0)
    arrays = inputs(b)
    arrays[1], arrays[2] = arrays[1].to(q_type), arrays[2].to(p_type)
    exact = {"q": arrays[1].double().cpu().numpy(), "p": arrays[2].double().cpu().numpy()}
    assert lists(launch.launch(*arrays, stretch=1, splits=2)) == regimes.answers(reference, b | exact)


def test_layouts_that_allow_16_byte_loads():
    rows = torch.zeros(2, 3, 64)
    assert launch.alignment(rows) == launch.alignment(rows[:, 1:]) == launch.alignment(rows[..., 4:9]) == 4
    assert launch.alignment(rows.half()) == 8
    assert launch.alignment(rows[:, :1].expand(2, 3, 64)) == 4
    for other in (None, rows[..., 1:], rows[..., ::2], rows.transpose(0, 2), torch.zeros(2, 3, 63)):
        assert launch.alignment(other) == 1


def test_splits_are_powers_of_two_and_fill_the_device():
    choices = [launch.default_splits(batch, tiles) for batch in (1, 8, 65, 300, 10**6) for tiles in (1, 3, 126, 2048)]
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
    drawn = [launch.draw(*on_device, index, purpose).tolist() for index, purpose in ((0, 0), (3, 2))]
    assert drawn == expected
    assert drawn[0][3] == -1


def test_a_row_of_q_without_ids_is_soft():
    p = torch.tensor([[[0.5, 0.5], [0.5, 0.5]]], device=DEVICE)
    draft = torch.zeros(1, 1, dtype=torch.int64, device=DEVICE)
    _, accepted, status = launch.verify(draft, torch.zeros(1, 1, 0, device=DEVICE), p, seed=1)
    assert (accepted.item(), status.item()) == (0, 2)


def test_the_operator_is_sound():
    """PyTorch's own check: the schema tells the truth about mutation and aliasing, fake shapes match."""
    b, _ = case(regimes.mixed, 9)
    torch.library.opcheck(launch.triton_verify, tuple(inputs(b)))


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
