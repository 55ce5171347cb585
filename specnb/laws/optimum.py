"""The most drafts that any lossless rule could accept, by a linear program over all of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from specnb.errors import SpecnbError
from specnb.laws.joint import Tree, target_laws
from specnb.laws.rows import Rows, as_count, trees_of

FEASIBILITY = 1e-10
"""How far HiGHS may violate a constraint: the least that it takes, so that optima are right to 1e-9."""

Constraint = tuple[list[tuple[np.ndarray, Any]], np.ndarray]
"""R constraints: terms of variables [R, m] with coefficients that broadcast to [N, R, m], and right sides [N, R]."""


def best_expected_accepted(*, p: Rows, q: Rows, gamma: int) -> float:
    """Return the largest expected number of accepted drafts that a lossless rule for one drafted path can have.

    p, q: a row [V], or a function from a prefix (tuple of ids) to its row; gamma >= 0 drafts. A rule is here any
    law of n and of the emitted token given the whole path; it is lossless if what it emits, continued by p, has
    p's law. Solved in float64; raises `SpecnbError` where SciPy is missing.

    >>> best = best_expected_accepted(p=[1 / 3, 2 / 3], q=[2 / 3, 1 / 3], gamma=2)
    >>> abs(best - 11 / 9) < 1e-9
    True
    """
    gamma = as_count("gamma", gamma, 0)
    target, drafted, _ = trees_of(p, q, gamma + 1)
    return float(most_accepted([rows[None] for rows in target], [rows[None] for rows in drafted], gamma)[0])


def most_accepted(target: Tree, drafted: Tree, gamma: int) -> np.ndarray:
    """Return the optima [N] of N examples, by one program of N independent blocks.

    Its variables: kept[n, path], the probability to draft that path and keep exactly n of it; ended[k][node], the
    probability that the step has ended and that it and then p emitted that node of k tokens.
    """
    if not gamma:
        return np.zeros(len(target[0]))
    target, drafted = ([_normalised(rows) for rows in tree[:gamma]] for tree in (target, drafted))
    V = target[0].shape[-1]
    kept = np.arange((gamma + 1) * V**gamma).reshape(gamma + 1, V**gamma)
    sizes = np.cumsum([kept.size, *(V**k for k in range(gamma + 1))])
    ended = [np.arange(*ends) for ends in itertools.pairwise(sizes)]
    goal, most = np.zeros(sizes[-1]), np.full(sizes[-1], np.inf)
    goal[kept] = np.arange(gamma + 1)[:, None]
    most[ended[0]] = 0  # a step emits at least one token
    return _maximised(goal, most, [*_equal(kept, ended, target, drafted)], [*_at_most(ended, target)])


def _normalised(rows: np.ndarray) -> np.ndarray:
    rows = rows.astype(float)
    return rows / rows.sum(-1, keepdims=True)


def _equal(kept: np.ndarray, ended: list[np.ndarray], target: Tree, drafted: Tree) -> Iterator[Constraint]:
    """Yield that every path keeps some n, that what stops there ends one token later, and that all is p's law."""
    N, _, V = target[0].shape
    yield [(kept.T, 1)], target_laws(drafted)
    for k in range(len(target)):
        stops, children = kept[k].reshape(V**k, -1), ended[k + 1].reshape(V**k, V)
        yield [(stops, 1), (ended[k][:, None], 1), (children, -1)], np.zeros((N, V**k))
    yield [(kept[-1][:, None], 1), (ended[-1][:, None], 1)], target_laws(target)


def _at_most(ended: list[np.ndarray], target: Tree) -> Iterator[Constraint]:
    """Yield that p continues what has ended: the rest of a node's mass is the step's last token, and not negative."""
    N, _, V = target[0].shape
    for rows, (parents, children) in zip(target, itertools.pairwise(ended), strict=True):
        continued = np.repeat(parents, V)[:, None], rows.reshape(N, -1, 1)
        yield [continued, (children[:, None], -1)], np.zeros((N, len(children)))


def _maximised(goal: np.ndarray, most: np.ndarray, equal: list, at_most: list) -> np.ndarray:
    """Return the largest value of the goal [variables] in each of the blocks, for variables from 0 to `most`."""
    try:
        from scipy.optimize import linprog
    except ImportError as error:
        raise SpecnbError(f"SciPy finds the best rule, and can't be imported ({error}): pip install scipy") from None
    N = len(equal[0][1])
    (A_eq, b_eq), (A_ub, b_ub) = (_blocks(constraints, len(goal)) for constraints in (equal, at_most))
    bounds = np.tile(np.stack([np.zeros(len(most)), most], axis=1), (N, 1))
    # Presolve takes masses near the tolerance for contradictions and calls such programs infeasible.
    options = {f"{side}_feasibility_tolerance": FEASIBILITY for side in ("primal", "dual")} | {"presolve": False}
    found = linprog(-np.tile(goal, N), A_ub, b_ub, A_eq, b_eq, bounds, method="highs", options=options)
    if not found.success:
        raise SpecnbError(f"HiGHS found no best rule: {found.message}")
    return found.x.reshape(N, -1) @ goal


def _blocks(constraints: list[Constraint], size: int) -> tuple[Any, np.ndarray]:
    """Return N independent copies of constraints on `size` variables as a sparse matrix, and their right sides."""
    from scipy.sparse import csr_array

    right = np.concatenate([sides for _, sides in constraints], axis=1)
    N, R = right.shape
    entries, first = [], 0
    for terms, sides in constraints:
        rows = first + np.arange(sides.shape[1])[:, None]
        entries += [np.broadcast_arrays(np.zeros((N, 1, 1)) + c, rows, columns) for columns, c in terms]
        first += len(rows)
    values, rows, columns = (np.concatenate([x.reshape(N, -1) for x in part], 1) for part in zip(*entries, strict=True))
    block = np.arange(N)[:, None]
    where = (rows + R * block).ravel(), (columns + size * block).ravel()
    return csr_array((values.ravel(), where), shape=(N * R, N * size)), right.ravel()
