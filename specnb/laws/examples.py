"""Random and adversarial rows that differ after every prefix, the same numbers in float64 and in Fractions."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import numpy as np

from specnb.laws.joint import Tree

DENOMINATOR = 2**20
"""Every entry is a multiple of 2^-20, which float64 holds exactly, and so do rows their sum 1: rare tokens are rare."""

CONCENTRATION = 0.5
"""Of the Dirichlet laws that rows are drawn from: below 1, so that some tokens are likely and some are rare."""

Pair = tuple[np.ndarray, np.ndarray]


def trees(kind: str, *, vocabulary: int, gamma: int, steps: int, examples: int, seed: int) -> tuple[Tree, Tree]:
    """Return the float64 rows of p and q of that many examples after every prefix of fewer than steps·(γ+1) tokens.

    kind: one of `KINDS`. Rows are a pure function of all of these arguments.
    """
    rng = np.random.default_rng([seed, list(KINDS).index(kind), vocabulary, gamma, steps])
    levels = [
        [_normalised(row) for row in KINDS[kind](rng, *_dirichlet(rng, (2, examples, vocabulary**k, vocabulary)))]
        for k in range(steps * (gamma + 1))
    ]
    return [p for p, _ in levels], [q for _, q in levels]


def exactly(tree: Tree) -> Tree:
    """Return rows of floats as the Fractions that they are."""
    return [np.array(list(map(Fraction, rows.flat)), object).reshape(rows.shape) for rows in tree]


def _dirichlet(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return rng.dirichlet(np.full(shape[-1], CONCENTRATION), shape[:-1])


def _normalised(weights: np.ndarray) -> np.ndarray:
    """Return weights [..., V] over their sum, each rounded to a multiple of 1/DENOMINATOR so that the sum stays 1."""
    ends = np.cumsum(weights, -1)
    ends = np.rint(DENOMINATOR * ends / ends[..., -1:])
    return np.diff(ends, prepend=0) / DENOMINATOR


def _random(rng: np.random.Generator, p: np.ndarray, q: np.ndarray) -> Pair:
    return p, q


def _near(rng: np.random.Generator, p: np.ndarray, q: np.ndarray) -> Pair:
    return p, 0.9 * p + 0.1 * q


def _equal(rng: np.random.Generator, p: np.ndarray, q: np.ndarray) -> Pair:
    return p, p


def _coarse(rng: np.random.Generator, p: np.ndarray, q: np.ndarray) -> Pair:
    """Multiples of 1/4: many ties between p and q, and many zeros."""
    return rng.multinomial(4, p), rng.multinomial(4, q)


def _zeros(rng: np.random.Generator, p: np.ndarray, q: np.ndarray) -> Pair:
    return _thinned(rng, p), _thinned(rng, q)


def _thinned(rng: np.random.Generator, row: np.ndarray) -> np.ndarray:
    """Drop entries at random, but never the largest."""
    return np.where((rng.random(row.shape) < 0.5) | (row == row.max(-1, keepdims=True)), row, 0)


def _disjoint(rng: np.random.Generator, p: np.ndarray, q: np.ndarray) -> Pair:
    """Give each token to one of p and q: at least one to each, unless there is only one token."""
    order = np.argsort(rng.random(p.shape), -1)
    mine = order < rng.integers(1, max(2, p.shape[-1]), (*p.shape[:-1], 1))
    return np.where(mine, p, 0), np.where(mine, 0, q) if p.shape[-1] > 1 else q


def _one_hot(rng: np.random.Generator, p: np.ndarray, q: np.ndarray) -> Pair:
    """Put all mass of p, of q or of both on one token."""
    which = rng.integers(3, size=(*p.shape[:-1], 1))
    return np.where(which != 1, _point(p), p), np.where(which != 0, _point(q), q)


def _point(row: np.ndarray) -> np.ndarray:
    return np.eye(row.shape[-1])[row.argmax(-1)]


def _mixed(rng: np.random.Generator, p: np.ndarray, q: np.ndarray) -> Pair:
    """Draw after every prefix which of the other kinds its rows are."""
    kinds = [kind for kind in KINDS.values() if kind is not _mixed]
    pairs = np.array([[_normalised(row) for row in kind(rng, p, q)] for kind in kinds])
    chosen = rng.integers(len(kinds), size=p.shape[:-1])
    p, q = np.take_along_axis(pairs, chosen[None, None, ..., None], axis=0)[0]
    return p, q


KINDS: dict[str, Callable[[np.random.Generator, np.ndarray, np.ndarray], Pair]] = {
    "random": _random, "near": _near, "equal": _equal, "coarse": _coarse, "zeros": _zeros, "disjoint": _disjoint,
    "one-hot": _one_hot, "mixed": _mixed,
}  # fmt: skip
"""How the rows of p and q lie to each other; each is a function (rng, p, q) of Dirichlet rows to weights."""
