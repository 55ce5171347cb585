"""The catalogue of mistakes: each one's exact numbers, its smallest counterexample, and which test misses it."""

from __future__ import annotations

from fractions import Fraction as F

import pytest

from specnb import laws, mistakes, rules
from specnb.errors import SpecnbError

TOY = {"p": [F(1, 3), F(2, 3)], "q": [F(2, 3), F(1, 3)]}
SEP = {"p": [F(3, 12), F(5, 12), F(4, 12)], "q": [F(2, 12), F(9, 12), F(1, 12)]}
V3A = {"p": [F(5, 10), F(3, 10), F(2, 10)], "q": [F(2, 10), F(3, 10), F(5, 10)]}


def _numbers(use, rows, gamma):
    """Return expected accepted drafts and the total variations of the joint law and of the first token."""
    joint = laws.joint_law(use, **rows, gamma=gamma)
    target = laws.target_law(rows["p"], joint.ndim)
    first = laws.total_variation(_first_token(joint), _first_token(target))
    return laws.expected_accepted(use, **rows, gamma=gamma), laws.total_variation(joint, target), first


def _first_token(joint):
    return joint.reshape(len(joint), -1).sum(1)


@pytest.mark.parametrize(
    ("name", "accepted", "joint", "first"),
    [
        ("token", F(10, 9), 0, 0),
        ("block", F(169, 144), 0, 0),
        ("match", F(10945, 20736), 0, 0),
        ("block with the token residual", F(169, 144), F(11, 576), 0),
        ("one shared uniform", F(5, 4), F(5, 36), 0),
        ("resample from p", F(10, 9), F(25, 144), F(5, 36)),
        ("swapped ratio", F(34417, 20736), F(899, 2304), F(1, 3)),
    ],
)
def test_sep(name, accepted, joint, first):
    use = name if name in rules.RULES else mistakes.get(name).use
    assert _numbers(use, SEP, 2) == (accepted, joint, first)


def test_block_on_sep_and_toy():
    assert laws.accepted_law("block", **SEP, gamma=2).tolist() == [F(1, 3), F(23, 144), F(73, 144)]
    assert laws.accepted_law("block", **TOY, gamma=2).tolist() == [F(1, 3), F(1, 9), F(5, 9)]
    assert [laws.expected_accepted("block", **TOY, gamma=gamma) for gamma in (1, 2, 3)] == [F(2, 3), F(11, 9), F(5, 3)]


@pytest.mark.parametrize(
    ("name", "p", "q", "out"),
    [
        ("raw q after top-k", [F(1, 2), F(3, 10), F(1, 5)], [F(2, 5), F(2, 5), F(1, 5)], [F(5, 8), F(3, 8), 0]),
        ("arg-max draft, soft q", [F(1, 5), F(3, 10), F(1, 2)], [F(1, 2), F(3, 10), F(1, 5)], [F(2, 5), 0, F(3, 5)]),
    ],
)
def test_drafts_that_are_not_what_they_are_declared_to_be(name, p, q, out):
    law = _first_token(laws.joint_law(mistakes.get(name).use, p=p, q=q, gamma=1))
    assert law.tolist() == out
    assert laws.total_variation(law, p) == {"raw q after top-k": F(1, 5), "arg-max draft, soft q": F(3, 10)}[name]


def test_an_arg_max_draft_declared_one_hot_is_fine():
    p, q = [F(2, 10), F(3, 10), F(5, 10)], [F(1), F(0), F(0)]
    assert _numbers(mistakes.get("arg-max draft, soft q").use, {"p": p, "q": q}, 1)[1] == 0


def test_uniforms_reused_across_steps():
    joint = laws.joint_law(mistakes.get("uniforms reused across steps").use, **TOY, gamma=1, steps=2)
    two = joint.sum(axis=(2, 3))
    assert two.ravel().tolist() == [F(1, 9), F(2, 9), F(1, 9), F(5, 9)]
    assert laws.total_variation(two, laws.target_law(TOY["p"], 2)) == F(1, 9)


@pytest.mark.parametrize(
    ("rule", "alpha", "out", "distance"),
    [
        (rules.lenient(F(1, 2)), F(9, 10), [F(3, 10), F(3, 10), F(2, 5)], F(1, 5)),
        (rules.lenient(F(1, 2), "p - lq"), F(9, 10), [F(3, 11), F(18, 55), F(2, 5)], F(5, 22)),
        (rules.ensemble(F(3, 4)), F(31, 40), [F(17, 40), F(3, 10), F(11, 40)], F(3, 40)),
    ],
    ids=lambda value: getattr(value, "label", None),
)
def test_lossy_rules(rule, alpha, out, distance):
    assert laws.expected_accepted(rule, **V3A, gamma=1) == alpha
    law = _first_token(laws.joint_law(rule, **V3A, gamma=1))
    assert law.tolist() == out
    assert laws.total_variation(law, V3A["p"]) == distance


HALVES, SECOND = [F(1, 2), F(1, 2)], [0, 1]
ONE_ONE_TWO, NONE_THREE_ONE = [F(1, 4), F(1, 4), F(1, 2)], [0, F(3, 4), F(1, 4)]


@pytest.mark.parametrize(
    ("name", "gamma", "p", "q", "distance", "missed"),
    [
        ("arg-max correction", 1, HALVES, SECOND, F(1, 4), ["first token"]),
        ("threshold on p", 1, HALVES, SECOND, F(1, 2), []),
        ("resample from p", 1, HALVES, SECOND, F(1, 4), []),
        ("swapped ratio", 1, HALVES, SECOND, F(1, 2), []),
        ("epsilon floor", 1, [0, 1], [1, 0], F(1, 65537), []),
        ("block with the token residual", 2, ONE_ONE_TWO, NONE_THREE_ONE, F(1, 32), ["first token"]),
        ("block without rescue", 2, HALVES, SECOND, F(1, 6), []),
        ("arg-max draft, soft q", 1, HALVES, HALVES, F(1, 2), []),
        ("raw q after top-k", 1, [0, F(1, 5), F(4, 5)], [F(1, 5), F(2, 5), F(2, 5)], F(1, 20), []),
        ("raw target", 1, [F(1, 3), F(2, 3)], SECOND, F(44, 225), []),
        ("bonus from the draft", 1, SECOND, HALVES, F(1, 4), ["first token"]),
        ("one shared uniform", 2, HALVES, SECOND, F(1, 4), ["first token"]),
        ("uniforms reused across steps", 1, HALVES, SECOND, F(5, 8), ["first token", "one step"]),
    ],
)
def test_smallest_counterexamples(name, gamma, p, q, distance, missed):
    mistake = mistakes.get(name)
    found = mistake.smallest
    assert (found.gamma, found.p, found.q, found.distance) == (gamma, p, q, distance)
    assert list(mistake.missed_by) == missed
    assert found.seen_by()["two steps"] > 0


def test_the_table_holds_the_whole_catalogue():
    table = mistakes.table()
    assert [row["mistake"] for row in table] == [mistake.name for mistake in mistakes.CATALOGUE]
    assert table[5] == {
        "mistake": "block with the token residual", "gamma": 2, "p": "(1/4, 1/4, 1/2)", "q": "(0, 3/4, 1/4)",
        "total variation": F(1, 32), "first token": 0, "missed by": "first token",
        "seen": "block verification, half adopted",
    }  # fmt: skip
    assert table[-1]["missed by"] == "first token, one step"
    assert table[1]["missed by"] == "no test"


def test_names_are_unique_and_found():
    assert len({mistake.name for mistake in mistakes.CATALOGUE}) == len(mistakes.CATALOGUE) == 13
    assert all(mistakes.get(mistake.name) is mistake for mistake in mistakes.CATALOGUE)
    with pytest.raises(SpecnbError, match="mistake 'resample' is unknown; expected one of arg-max correction, "):
        mistakes.get("resample")
