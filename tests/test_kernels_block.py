"""What only the kernels of the rules block and coupled have: two launches, and what the first leaves for the second.

That they agree with the other backends is in test_agreement.py.
"""

from __future__ import annotations

import numpy as np
import pytest
import regimes
import torch

pytest.importorskip("triton")
from kernel_calls import (
    DEVICE,
    TYPES,
    V,
    answers,
    case,
    decide,
    inputs,
    interpreted,
    poisoned,
    reads,
    run,
    shuffled,
    types_agree,
)
from specnb_kernels import operators

pytestmark = pytest.mark.triton


@pytest.mark.parametrize(
    ("rule", "regime", "rows"),
    [
        ("block", regimes.mixed, 4),
        ("block", regimes.ragged, 4),
        ("block", regimes.points, 4),
        ("block", regimes.broken, 12),
        ("block", regimes.heavy, 1),
        ("block", regimes.same, 2),
        ("coupled", regimes.broken, 2),
    ],
    ids=lambda x: getattr(x, "__name__", x),
)
def test_splits_never_change_a_result(rule, regime, rows):
    b = case(regime, rows=rows)
    assert decide(b, rule, splits=2) == answers(b, rule)


@pytest.mark.parametrize("width", [1, 3, 129, 2049])
def test_any_vocabulary_is_cut_into_two(width):
    """The second split of a small one reads nothing. Strided p, a narrower q, a one-hot row, one key for all rows."""
    b = regimes.batch(np.random.default_rng([6, width]), 3, 3, width, 0.5)
    b |= {"p": np.repeat(b["p"], 2, axis=2)[..., ::2], "q": b["q"][..., : max(width - 1, 1)].copy()}
    b |= {"onehot": np.arange(3) == 1, "seed": 2**40, "position": 3}
    assert decide(b, "block", splits=2) == answers(b, "block")


@pytest.mark.parametrize("width", [3, V])
def test_coupled_accepts_what_its_words_draw(width):
    """With q = p every draft is the target's own draw, up to the row's length. p is a view with steps."""
    b = regimes.batch(np.random.default_rng(7), 3, 2, width, 0.0) | {"seed": 2**40, "position": 2**32 - 1}
    b |= {"draft": regimes.own_draws(b), "lengths": np.array([0, 1, 2])}
    b["p"] = np.repeat(np.repeat(b["p"], 2, axis=1), 2, axis=2)[:, ::2, ::2]
    result = decide(b, "coupled", splits=2)
    assert result == answers(b, "coupled")
    assert result[1] == [0, 1, 2]


def test_coupled_ends_at_a_foreign_id():
    b = {"draft": np.array([[-2], [1], [0], [-1]]), "q": None, "p": np.ones((4, 2, 1)), "lengths": None, "onehot": None}
    b |= {"seed": 3, "position": 0, "uniforms": None}
    expected = [[[0, -1], [0, -1], [0, 0], [0, -1]], [0, 0, 1, 0], [4, 4, 0, 0]]
    assert decide(b, "coupled") == answers(b, "coupled") == expected


@pytest.mark.parametrize("place", [0, 512, V - 1])
@pytest.mark.parametrize("name", ["p", "q"])
def test_block_sees_one_bad_element_behind_any_prefix(name, place):
    b = regimes.batch(np.random.default_rng(3), 1, 3, V, 1.0)
    b[name][0, 2, place] = np.nan
    result = decide(b, "block", splits=4)
    assert result == answers(b, "block")
    assert result[2][0] & 1 == 1


def two_drafts(p_1, u):
    """Return one request whose drafts are both token 0, with q = (1/2, 1/4, 1/4), a_1 = 1/2 and p_1 behind it."""
    return {
        "draft": np.zeros((1, 2), np.int64), "q": np.array([[(0.5, 0.25, 0.25)] * 2]),
        "p": np.array([[(0.25, 0.75, 0.0), p_1, (0.5, 0.5, 0.0)]]), "lengths": None, "onehot": None,
        "seed": None, "position": 0, "uniforms": np.array([[*u, 0.75]]),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("p_1", "u", "n", "tokens", "status"),
    [
        ((0.25, 0.5, 0.25), (0.0, 0.9), 0, [1, -1, -1], 0),  # S_1 = 0, so h_1 = 0
        ((0.0, 1.5, 0.0), (0.49, 0.9), 1, [0, 1, -1], 0),  # S_1 = 1/2, so h_1 = 1/2; a_2 = 0
        ((0.0, 1.5, 0.0), (0.5, 0.9), 0, [1, -1, -1], 0),
        ((0.0, 1.2, 0.8), (0.4, 0.9), 1, [0, 2, -1], 0),  # the final token from (0, 0.35, 0.15) by 3/4
        ((1.9, 0.0, 0.0), (0.9, 0.9), 2, [0, 0, 1], 0),  # S_1 = 0.45 and h_1 = 9/19 fails; a_2 = 1 rescues it
        ((0.0, 3.0, 3.0), (0.0, 0.9), 0, [-1, -1, -1], 16),  # a mass of 2.5 is too heavy, and counts as S_1 = 0
    ],
)
def test_a_block_by_hand(p_1, u, n, tokens, status):
    b = two_drafts(p_1, u)
    assert decide(b, "block") == answers(b, "block") == [[tokens], [n], [status]]


@pytest.mark.parametrize(("other", "status"), [(0.4, 0), (0.6, 16)])
def test_a_one_hot_draft_keeps_what_it_has_above_1(other, status):
    """S_1 = (2.5 - 1) + other is too heavy from 2 on, in a row that is no distribution."""
    p = np.array([[(1.0, 0.0, 0.0), (2.5, other, 0.0), (1.0, 0.0, 0.0)]])
    b = two_drafts((0.0, 0.0, 0.0), (0.5, 0.5)) | {"q": None, "p": p}
    assert decide(b, "block") == answers(b, "block") == [[[0, 0, -1 if status else 0]], [2], [status]]


def test_the_first_launch_leaves_ratios_and_chances():
    """To the bit: the sums are of Python's integers here."""
    b = regimes.batch(np.random.default_rng(5), 3, 5, V, 0.5) | {"onehot": np.arange(3) == 1}
    (first, _) = operators.launches(*inputs(b, "block"), splits=2)
    first.run()
    p, q, x = b["p"].astype(float), b["q"].astype(float), b["draft"]
    q[b["onehot"]] = np.eye(V)[x[b["onehot"]]]
    a, rows = np.ones(3), np.arange(3)
    for i in range(1, 5):
        a = np.minimum(1, a * p[rows, i - 1, x[:, i - 1]] / q[rows, i - 1, x[:, i - 1]])
        w = np.maximum(a[:, None] * p[:, i] - q[:, i], 0) * 2.0**62
        mass = np.array([float(sum(map(int, row))) for row in w]) * 2.0**-62
        assert first.arguments["ratios"][:, i - 1].tolist() == a.tolist()
        assert first.arguments["chances"][:, i - 1].tolist() == (mass / (mass + (1 - a))).tolist()


@interpreted
@pytest.mark.parametrize(("n", "rows_of_p", "rows_of_q"), [(0, 3, 3), (1, 2, 2), (3, 3, 2)])
def test_block_reads_each_row_pair_once(monkeypatch, n, rows_of_p, rows_of_q):
    """The residuals behind 1 and 2 of 3 drafts, then that behind n unless it is one of them, and one split again."""
    width, splits = 4096, 4
    b = regimes.batch(np.random.default_rng(0), 1, 3, width) | {"seed": None}
    drafted = 0, np.arange(3), b["draft"][0]
    b["p"][drafted] = b["q"][drafted] / 2  # so that every test can fail
    b["uniforms"] = np.array([[*(np.arange(1, 4) != n) * (1 - 2.0**-53), 0.5]])
    arguments = inputs(b, "block")
    p, q = (reads(monkeypatch, arguments[k]) for k in (2, 1))
    assert operators.launch(*arguments, stretch=1, splits=splits)[1].item() == n
    gathers = (2 + 1) * splits * 3  # by every program of two prefixes and of kernel A
    assert rows_of_p * width < sum(p) - gathers <= rows_of_p * width + width // splits
    assert rows_of_q * width <= sum(q) - gathers <= rows_of_q * width + width // splits


@interpreted
@pytest.mark.parametrize("rule", ["block", "coupled"])
def test_any_split_may_arrive_last(monkeypatch, rule):
    b = case(regimes.far, rows=2)
    ran = shuffled(monkeypatch, (0, 3, 2, 1))
    assert decide(b, rule, splits=4) == answers(b, rule)
    assert list(dict.fromkeys(ran)) == [0, 3, 2, 1]


@pytest.mark.parametrize(("rule", "gamma"), [*(("block", G) for G in (0, 1, 2, 8)), ("coupled", 0), ("coupled", 8)])
def test_every_output_is_written_once_per_launch(rule, gamma):
    b = regimes.batch(np.random.default_rng(gamma), 3, gamma, 300, 0.2) | {"lengths": np.array([0, gamma // 2, gamma])}
    b |= {"seed": None, "uniforms": np.tile([0.0] * gamma + [0.5], (3, 1))}  # a block is accepted up to its length
    assert run(poisoned(operators.launches(*inputs(b, rule), splits=2))) == answers(b, rule)


def test_both_launches_of_a_block_share_the_counters():
    """A prefix without a draft behind it takes no ticket at all."""
    b = case(regimes.far, rows=3) | {"lengths": np.array([3, 2, 0])}
    counters = torch.full((6,), 4, dtype=torch.int32, device=DEVICE)
    steps = operators.launches(*inputs(b, "block"), splits=4)
    assert run([s._replace(arguments=s.arguments | {"arrivals": counters}) for s in steps]) == answers(b, "block")
    assert counters.tolist() == [12, 12, 12, 4, 4, 4]


@pytest.mark.parametrize(("p_type", "q_type"), [*zip(TYPES, TYPES[::-1], strict=True)], ids=str)
@pytest.mark.parametrize("rule", ["block", "coupled"])
def test_types(rule, p_type, q_type):
    assert types_agree(rule, p_type, q_type)


@pytest.mark.parametrize(("seed", "uniforms"), [(None, None), (1, torch.zeros(1, 2)), (None, torch.zeros(1, 2))])
def test_coupled_drafts_take_a_seed(seed, uniforms):
    p, draft = torch.ones(1, 2, 1), torch.zeros(1, 1, dtype=torch.int64)
    with pytest.raises(ValueError, match="expected a seed and uniforms=None"):
        operators.verify_coupled(draft, None, p, seed=seed, uniforms=uniforms)
