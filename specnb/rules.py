"""Every verification rule as its conditional law, written once for numbers, fractions and symbols.

A rule is a function law(draft, q, p, xp) of a drafted path and its rows,

    draft int [..., G], q [..., G, V], p [..., G+1, V]  →  lengths [..., G+1], correction [..., G+1, V]

with lengths[n] = P(accept exactly n drafts) and correction[n] = the law of the token emitted after n. It does
all arithmetic by + − × and `xp`, so the same lines read float64 arrays (`FLOAT64`), object arrays of
`fractions.Fraction` (`EXACT`) and of SymPy expressions (`specnb.proofs`). A new rule is such a function and
one line in `RULES`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np

from specnb.errors import SpecnbError


@dataclass(frozen=True)
class Arithmetic:
    """The operations that a law may use beyond + − ×, on arrays of one kind of number.

    where(x, a, b) is a where x > 0, else b; divide(a, b) is a/b, and 0 where b is 0: an impossible draft is
    never accepted, and an empty residual has no mass.
    """

    min: Callable[[Any, Any], Any]
    max: Callable[[Any, Any], Any]
    where: Callable[[Any, Any, Any], Any]
    divide: Callable[[Any, Any], Any]

    def sum(self, x: np.ndarray) -> np.ndarray:
        """Return the sums over the last axis, which is kept with length 1."""
        return x.sum(axis=-1, keepdims=True)


def _divide_float64(a, b):
    a, b = np.broadcast_arrays(a, b)
    return np.divide(a, b, out=np.zeros(a.shape), where=b != 0)


def elementwise(minimum: Callable, maximum: Callable, where: Callable, divide: Callable) -> Arithmetic:
    """Return the arithmetic of object arrays whose elements these four functions combine."""
    return Arithmetic(
        np.frompyfunc(minimum, 2, 1), np.frompyfunc(maximum, 2, 1),
        np.frompyfunc(where, 3, 1), np.frompyfunc(divide, 2, 1),
    )  # fmt: skip


def _divide_exactly(a, b):
    return Fraction(a) / b if b else Fraction(0)


FLOAT64 = Arithmetic(np.minimum, np.maximum, lambda x, a, b: np.where(x > 0, a, b), _divide_float64)
EXACT = elementwise(min, max, lambda x, a, b: a if x > 0 else b, _divide_exactly)


def acceptance(q: Any, p: Any, xp: Arithmetic) -> Any:
    """Return min(1, p/q) elementwise: the probability to keep a draft (Leviathan et al., section 2.3)."""
    return xp.min(1, xp.divide(p, q))


def residual(q: Any, p: Any, xp: Arithmetic) -> Any:
    """Return the law of the correction, (p − q)+ over its sum; p over its own where p − q leaves nothing."""
    remaining = xp.max(p - q, 0)
    return normalised(xp.where(xp.sum(remaining), remaining, p), xp)


def normalised(weights: Any, xp: Arithmetic) -> Any:
    """Return weights over their sum; zeros stay zeros."""
    return xp.divide(weights, xp.sum(weights))


def first_rejection(accept: np.ndarray) -> np.ndarray:
    """Return the law [..., G+1] of n, where accept[..., i] is P(draft i is kept | all before it are)."""
    one = np.ones((*accept.shape[:-1], 1), accept.dtype)
    reached = np.concatenate([one, np.cumprod(accept, axis=-1)], axis=-1)
    return reached * np.concatenate([1 - accept, one], axis=-1)


def at(rows: np.ndarray, draft: np.ndarray) -> np.ndarray:
    """Return each drafted token's own entry of its row, [..., G]; 0 for an id outside the vocabulary."""
    V = rows.shape[-1]
    inside = (draft >= 0) & (draft < V)
    entries = np.take_along_axis(rows, np.where(inside, draft, 0)[..., None], axis=-1)[..., 0]
    return np.where(inside, entries, 0)


def point(draft: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return one-hot rows at the drafted tokens, of the kind of `rows`; zeros for an id outside."""
    return np.where(draft[..., None] == np.arange(rows.shape[-1]), 1, 0 * rows)


def token(draft, q, p, xp):
    """Keep a draft with probability min(1, p/q); correct a rejection from (p − q)+, else draw a bonus."""
    G = draft.shape[-1]
    drafted, bonus = p[..., :G, :], p[..., G:, :]
    lengths = first_rejection(acceptance(at(q, draft), at(drafted, draft), xp))
    return lengths, np.concatenate([residual(q, drafted, xp), normalised(bonus, xp)], axis=-2)


def match(draft, q, p, xp):
    """Keep a draft while the target's own draw agrees with it: the token rule with a one-hot draft row."""
    return token(draft, point(draft, p[..., : draft.shape[-1], :]), p, xp)


@dataclass(frozen=True)
class Rule:
    """A verification rule: its name, its conditional law, where it comes from, and whether it is lossless."""

    name: str
    law: Callable[..., tuple[np.ndarray, np.ndarray]] = field(repr=False)
    reference: str
    lossless: bool


RULES = {
    rule.name: rule
    for rule in (
        Rule("token", token, "Leviathan, Kalman, Matias 2023, arXiv:2211.17192, Algorithm 1", lossless=True),
        Rule("match", match, "the target's own draw, compared; the token rule with q one-hot", lossless=True),
    )
}


def get(rule: str | Rule) -> Rule:
    """Return the rule of that name; a `Rule` comes back as it is.

    >>> get("token").lossless
    True
    """
    if isinstance(rule, Rule):
        return rule
    if not isinstance(rule, str) or rule not in RULES:
        raise SpecnbError(f"rule {rule!r} is unknown; expected one of {', '.join(RULES)}, or a Rule")
    return RULES[rule]


def name_of(rule: str | Rule) -> str:
    """Return the name of a rule that the backends decide; a rule of one's own has laws, not yet verdicts."""
    rule = get(rule)
    if RULES.get(rule.name) is not rule:
        raise SpecnbError(
            f"rule {rule.name!r} can't be sampled; expected one of {', '.join(RULES)} (specnb.laws takes any)"
        )
    return rule.name
