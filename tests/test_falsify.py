"""Counterexamples: the smallest on the grid, confirmed exactly, printed as code that runs."""

from __future__ import annotations

import itertools
from fractions import Fraction as F

import pytest

from specnb import laws, mistakes, rules
from specnb.errors import SpecnbError
from specnb.laws.falsifying import GRID, REUSED_GRID, _rows

LOSSY = [rules.lenient(F(1, 2)), rules.lenient(0.5, "p - lq"), rules.ensemble(F(3, 4)), rules.typical()]
MISTAKES = [mistake.use for mistake in mistakes.CATALOGUE]


def _grid_size(gammas, vocabularies, denominators):
    return len(gammas) * sum(len(_rows(V, d)) ** 2 for V, d in itertools.product(vocabularies, denominators))


def test_the_grids_are_as_large_as_they_say():
    assert _grid_size(**GRID) == 41_001
    assert _grid_size(**REUSED_GRID) == 29


@pytest.mark.parametrize("rule", rules.RULES)
def test_lossless_rules_have_no_counterexample(rule):
    assert laws.falsify(rule) is None


def test_two_steps_of_a_lossless_rule():
    assert laws.falsify("block", gammas=[1, 2], vocabularies=[2], steps=2) is None


def test_rows_come_in_order():
    assert _rows(3, 2).tolist() == [[0, 0, 2], [0, 1, 1], [0, 2, 0], [1, 0, 1], [1, 1, 0], [2, 0, 0]]
    assert _rows(1, 3).tolist() == [[3]]


def _exhaustively(use, gammas, vocabularies, denominators):
    """Return the first counterexample of the same grid, every pair of which is compared in Fractions."""
    for gamma, V, d in itertools.product(gammas, vocabularies, denominators):
        rows = [[F(int(k), d) for k in row] for row in _rows(V, d)]
        for p, q in itertools.product(rows, rows):
            joint = laws.joint_law(use, p=p, q=q, gamma=gamma)
            if (distance := laws.total_variation(joint, laws.target_law(p, joint.ndim))) > 0:
                return gamma, p, q, distance
    return None


@pytest.mark.parametrize(
    ("name", "grid"),
    [
        ("block with the token residual", ([1], [2, 3], [1, 2, 3])),
        ("block with the token residual", ([2], [2], [1, 2, 3, 4])),
        ("block with the token residual", ([2], [3], [1, 2, 3, 4])),
        ("block without rescue", ([1, 2], [2], [1, 2])),
        ("raw q after top-k", ([1], [2, 3], [1, 2, 3, 4, 5])),
        ("one shared uniform", ([1, 2], [2], [1, 2])),
        ("epsilon floor", ([1], [2], [1])),
    ],
)
def test_the_screen_in_floats_misses_nothing(name, grid):
    use = mistakes.get(name).use
    found = laws.falsify(use, gammas=grid[0], vocabularies=grid[1], denominators=grid[2])
    expected = _exhaustively(use, *grid)
    assert (found and (found.gamma, found.p, found.q, found.distance)) == expected


def test_the_smallest_counterexample_to_block_with_the_token_residual():
    found = laws.falsify(mistakes.get("block with the token residual").use)
    assert (found.gamma, found.steps) == (2, 1)
    assert (found.p, found.q) == ([F(1, 4), F(1, 4), F(2, 4)], [F(0), F(3, 4), F(1, 4)])
    assert (found.distance, found.first_token) == (F(1, 32), 0)
    assert (found.tokens, found.emitted, found.promised) == ((1, 0, 2), F(1, 64), F(1, 32))
    assert found.seen_by() == {"first token": 0, "one step": F(1, 32), "two steps": F(59, 1024)}
    assert repr(found) == (
        "from fractions import Fraction; from specnb import laws, mistakes\n"
        "p, q = [Fraction(1, 4), Fraction(1, 4), Fraction(1, 2)], [Fraction(0, 1), Fraction(3, 4), Fraction(1, 4)]\n"
        "laws.total_variation(laws.joint_law(mistakes.get('block with the token residual').use, p=p, q=q, gamma=2, "
        "steps=1), laws.target_law(p, 3))  # 1/32; P(1, 0, 2) is 1/64, promised 1/32"
    )


def _run(code, **names):
    """Return the value of the last of three lines of code."""
    *statements, expression = code.splitlines()
    assert len(statements) == 2
    exec("\n".join(statements), names)
    return eval(expression, names)


@pytest.mark.parametrize("use", [*LOSSY, *MISTAKES], ids=lambda use: getattr(use, "label", use.name))
def test_the_reproduction_runs(use):
    found = laws.falsify(use)
    assert found.distance > 0
    assert _run(repr(found)) == found.distance
    assert f"# {found.distance}; P(" in repr(found)
    assert isinstance(found.distance, float if use.label.startswith("typical") else F)


def _corrected_from_p(draft, q, p, xp):
    return rules.token(draft, q, p, xp)[0], rules.normalised(p, xp)


@pytest.mark.parametrize("name", ["mine", "lenient"])
def test_a_rule_of_the_readers_own_is_called_rule(name):
    rule = rules.Rule(name, _corrected_from_p, "this test", lossless=False)
    found = laws.falsify(rule)
    assert (found.p, found.q, found.distance) == ([F(1, 2), F(1, 2)], [0, 1], F(1, 4))
    assert _run(repr(found), rule=rule) == F(1, 4)


def test_a_scenario_of_the_readers_own_is_judged_by_its_promise():
    scenario = laws.Scenario("block", promised=mistakes.sharpened)
    found = laws.falsify(scenario)
    assert (found.p, found.target) == ([F(1, 3), F(2, 3)], [F(1, 5), F(4, 5)])
    assert _run(repr(found), rule=scenario) == found.distance


def test_steps_that_share_uniforms_need_two_steps():
    use = mistakes.get("uniforms reused across steps").use
    assert laws.falsify(use).steps == 2
    assert laws.falsify(use, steps=1) is None


def test_a_bonus_without_a_draft():
    found = laws.falsify(mistakes.get("arg-max correction").use, gammas=[1, 0])
    assert (found.gamma, found.p, found.distance) == (0, [F(1, 2), F(1, 2)], F(1, 2))


def test_floats_that_are_wrong_by_rounding_alone_are_no_counterexample():
    """The law adds and takes away 1/3, which float64 rounds and Fractions don't; it stays below the tolerance."""

    def law(draft, q, p, xp):
        lengths, correction = rules.token(draft, q, p, xp)
        return lengths + xp.number(F(1, 3)) - xp.number(F(1, 3)), correction

    rule = rules.Rule("rounded", law, "this test", lossless=True)
    assert laws.falsify(rule, gammas=[1], vocabularies=[2]) is None


def test_suspects_of_the_screen_are_confirmed_exactly():
    """A law of which only the float64 version is wrong has no counterexample."""

    def law(draft, q, p, xp):
        lengths, correction = rules.token(draft, q, p, xp)
        return lengths, rules.normalised(correction + (p.dtype != object) * xp.number(F(1, 8)), xp)

    rule = rules.Rule("float error", law, "this test", lossless=True)
    assert laws.falsify(rule, gammas=[1], vocabularies=[2]) is None


@pytest.mark.parametrize(
    ("kwargs", "sentence"),
    [
        ({"rule": "tokens"}, "rule 'tokens' is unknown"),
        ({"rule": None}, "rule None is unknown"),
        ({"gammas": [0]}, r"gammas \[0\] and vocabularies \[2, 3, 4\] have no draft to judge"),
        ({"vocabularies": [1]}, "have no draft to judge"),
        ({"gammas": []}, r"gammas is \[\]; expected integers >= 0"),
        ({"gammas": 2}, "gammas is 2; expected integers >= 0"),
        ({"denominators": [0]}, "denominators is 0; expected an integer >= 1"),
        ({"steps": 0}, "steps is 0; expected an integer >= 1"),
    ],
)
def test_errors_say_what_came(kwargs, sentence):
    with pytest.raises(SpecnbError, match=sentence):
        laws.falsify(**{"rule": "token", **kwargs})
