"""Exact laws of verification: of one verdict, of one position, and of everything that several steps emit.

Rows are float64, or exact where any entry is a `fractions.Fraction`: then every result is exact too. Rows are
given as one row (the same after every prefix) or as a function from the prefix, a tuple of ids, to its row.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from specnb import rules
from specnb.arrays import describe, integers, is_torch, like, to_numpy
from specnb.errors import SpecnbError
from specnb.rules import EXACT, FLOAT64, Arithmetic, Rule
from specnb.streams import per_row
from specnb.validation import effective_lengths

Rows = Sequence[Any] | np.ndarray | Callable[[tuple[int, ...]], Any]

MASS_TOLERANCE = 1e-4
"""How far from 1 a row of floats may sum. A float32 softmax over 262,144 ids was off by 2e-5; Fractions: by 0."""


def total_variation(p: Any, q: Any) -> Any:
    """Return ½ Σ|p − q| of two laws of the same shape, which is 1 − Σ min(p, q).

    >>> total_variation([Fraction(1, 3), Fraction(2, 3)], [Fraction(2, 3), Fraction(1, 3)])
    Fraction(1, 3)
    """
    p, q = _numbers("p", p), _numbers("q", q)
    if p.shape != q.shape:
        raise SpecnbError(f"laws of shapes {p.shape} and {q.shape} can't be compared; expected equal shapes")
    return np.abs(p - q).sum() / 2


def emitted_law(*, p: Any, q: Any) -> tuple[np.ndarray, Any]:
    """Return the law [V] of the token that one position emits under the rule `token`, and α = Σ min(p, q).

    p, q: rows [V] of the target and the draft, each of sum 1. The law is added up from what happens: a draft
    is kept, or rejected and corrected from the residual. Leviathan et al. claim that it equals p (appendix
    A.1); nothing here assumes so.

    >>> emitted_law(p=[Fraction(1, 2), Fraction(1, 2)], q=[Fraction(1), Fraction(0)])[1]
    Fraction(1, 2)
    """
    p, q = _one_row("p", p), _one_row("q", q)
    xp = _arithmetic(p, q)
    accepted = q * rules.acceptance(q, p, xp)
    rejected = (q - accepted).sum()
    return accepted + rejected * rules.residual(q, p, xp), accepted.sum()


def law(
    draft: Any, q: Any, p: Any, *, rule: str | Rule = "token", lengths: Any = None, onehot: Any = None
) -> tuple[Any, ...]:
    """Return the exact law of `specnb.verify` on these inputs, over its uniforms.

    draft: ids [B, G], −1 ends a row's draft; q: rows [B, G, V] or None (all one-hot); p: rows [B, G+1, V];
    lengths int [B], onehot bool [B] as in `specnb.verify`. The batch dimension is optional.

    Returns lengths [B, G+1], the probability that exactly n drafts are accepted, and correction [B, G+1, V],
    the law of the token emitted after n; beyond a row's own draft both are 0. They are float64 in the
    framework of p, or Fractions where p and q are.

    >>> n, correction = law([0], [[1.0, 0.0]], [[0.25, 0.75], [0.5, 0.5]])
    >>> n.tolist(), correction[0].tolist()
    ([0.75, 0.25], [0.0, 1.0])
    """
    given = p
    draft = integers("draft", _array("draft", draft), None)
    if draft.ndim not in (1, 2):
        raise SpecnbError(f"draft is {describe(draft)}; expected ids [G] or [B, G]")
    batched = draft.ndim == 2
    draft, p = _batched(draft, 2), _batched(_row("p", p), 3)
    q = None if q is None else _batched(_row("q", q), 3)
    V = _vocabulary(draft, q, p)
    p, q = _widen(p, V), _draft_rows(draft, q, p, V, onehot)
    B, G = draft.shape
    if lengths is not None:
        lengths = per_row("lengths", np.atleast_1d(_array("lengths", lengths)), B, draft, 0, G)
    length = effective_lengths(draft, lengths)
    law_of_n, correction = np.zeros((B, G + 1), p.dtype), np.zeros((B, G + 1, V), p.dtype)
    for L in np.unique(length):
        rows = length == L
        law_of_n[rows, : L + 1], correction[rows, : L + 1] = rules.get(rule).law(
            draft[rows, :L], q[rows, :L], p[rows, : L + 1], _arithmetic(p, q)
        )
    answer = (law_of_n, correction) if batched else (law_of_n[0], correction[0])
    return tuple(like(array, given) if is_torch(given) else array for array in answer)


def joint_law(rule: str | Rule, *, p: Rows, q: Rows, gamma: int, steps: int = 1) -> np.ndarray:
    """Return the law of the first steps·(γ+1) tokens when drafts come from q and the rule verifies them.

    p, q: a row [V], or a function from a prefix (tuple of ids) to its row; rows sum to 1. gamma >= 0 drafts
    per step, steps >= 1. After `steps` verification steps,
    which may emit fewer tokens, the rest is drawn from p itself; so a rule is lossless exactly if the result
    is the target's own law, `target_law(p, steps·(γ+1))`. Shape (V,)·steps·(γ+1).

    >>> half = [Fraction(1, 2), Fraction(1, 2)]
    >>> joint_law("token", p=half, q=[Fraction(1), Fraction(0)], gamma=1).tolist()
    [[Fraction(1, 4), Fraction(1, 4)], [Fraction(1, 4), Fraction(1, 4)]]
    """
    gamma, steps = _count("gamma", gamma, 0), _count("steps", steps, 1)
    depth = steps * (gamma + 1)
    target, drafted = _tree("p", p, depth), _tree("q", q, depth)
    _arithmetic(target[0], drafted[0])
    V = target[0].shape[-1]
    started = [np.full(V**k, int(k == 0), target[0].dtype) for k in range(depth + 1)]
    for _ in range(steps):
        started = _one_step(rules.get(rule), target, drafted, started, gamma)
    mass = started[0]
    for rows, newly in zip(target, started[1:], strict=True):
        mass = _extend(mass, rows) + newly
    return mass.reshape((V,) * depth)


def target_law(p: Rows, tokens: int) -> np.ndarray:
    """Return the law of that many tokens (at least 1) drawn one by one from p, shape (V,)·tokens."""
    tokens = _count("tokens", tokens, 1)
    tree = _tree("p", p, tokens)
    mass = np.ones(1, tree[0].dtype)
    for rows in tree:
        mass = _extend(mass, rows)
    return mass.reshape((tree[0].shape[-1],) * tokens)


def accepted_law(rule: str | Rule, *, p: Rows, q: Rows, gamma: int) -> np.ndarray:
    """Return the law [γ+1] of the number of accepted drafts in one step from the empty prefix.

    >>> toy = dict(p=[Fraction(1, 3), Fraction(2, 3)], q=[Fraction(2, 3), Fraction(1, 3)])
    >>> accepted_law("token", **toy, gamma=2).tolist()
    [Fraction(1, 3), Fraction(2, 9), Fraction(4, 9)]
    """
    gamma = _count("gamma", gamma, 0)
    target, drafted = _tree("p", p, gamma + 1), _tree("q", q, gamma)
    if drafted:
        _arithmetic(target[0], drafted[0])
    weight, lengths, _ = _paths(rules.get(rule), target, drafted, 0, gamma)
    return (weight[:, None] * lengths).sum(axis=0)


def expected_accepted(rule: str | Rule, *, p: Rows, q: Rows, gamma: int) -> Any:
    """Return the expected number of accepted drafts in one step; a step emits one token more.

    >>> toy = dict(p=[Fraction(1, 3), Fraction(2, 3)], q=[Fraction(2, 3), Fraction(1, 3)])
    >>> expected_accepted("token", **toy, gamma=3)
    Fraction(38, 27)
    """
    accepted = accepted_law(rule, p=p, q=q, gamma=gamma)
    return (accepted * np.arange(len(accepted))).sum()


def _one_step(rule: Rule, target: list, drafted: list, started: list, gamma: int) -> list:
    """Move the mass [V^k] of steps that start after k tokens to where their final token leaves it."""
    V = target[0].shape[-1]
    ended = [np.zeros_like(mass) for mass in started]
    for k, mass in enumerate(started):
        if not mass.any():
            continue
        weight, lengths, correction = _paths(rule, target, drafted, k, gamma)
        weight = np.repeat(mass, V**gamma) * weight
        for n in range(gamma + 1):
            emitted = (weight * lengths[:, n])[:, None] * correction[:, n]
            ended[k + n + 1] += emitted.reshape(V ** (k + n), V ** (gamma - n), V).sum(axis=1).reshape(-1)
    return ended


def _paths(rule: Rule, target: list, drafted: list, k: int, gamma: int):
    """Return every path of γ drafts after every prefix of k: its probability, and the rule's law on it."""
    V = target[0].shape[-1]
    path = np.arange(V ** (k + gamma))
    places = [V ** (gamma - i) for i in range(gamma + 1)]
    draft = np.empty((len(path), gamma), np.int64)
    q = np.empty((len(path), gamma, V), target[0].dtype)
    p = np.empty((len(path), gamma + 1, V), target[0].dtype)
    for i, place in enumerate(places):
        p[:, i] = target[k + i][path // place]
        if i < gamma:
            q[:, i] = drafted[k + i][path // place]
            draft[:, i] = path // places[i + 1] % V
    return np.prod(rules.at(q, draft), axis=-1), *rule.law(draft, q, p, _arithmetic(p, q))


def _tree(name: str, rows: Rows, depth: int) -> list[np.ndarray]:
    """Return the rows after every prefix of 0 … depth−1 tokens, arrays [V^k, V] in the prefixes' order."""
    if not callable(rows):
        row = _one_row(name, rows)
        return [np.broadcast_to(row, (len(row) ** k, len(row))) for k in range(depth)]
    V = len(_one_row(name, rows(())))
    tree = []
    for k in range(depth):
        prefixes = list(np.ndindex(*(V,) * k))
        level = _row(name, [rows(prefix) for prefix in prefixes])
        if level.shape != (V**k, V):
            raise SpecnbError(f"{name} has rows {level.shape} after {k} tokens; expected {(V**k, V)}: one vocabulary")
        _check_mass(level, lambda at, prefixes=prefixes: f"{name} after the prefix {prefixes[at]}")
        tree.append(level)
    return tree


def _extend(mass: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return the mass [V^(k+1)] of prefixes one token longer, drawn from the rows [V^k, V]."""
    return (mass[:, None] * rows).reshape(-1)


def _count(name: str, value: Any, low: int) -> int:
    """Return a count as an int, or raise unless it is an integer of at least `low`."""
    try:
        count = operator.index(value)
    except TypeError:
        count = low - 1
    if isinstance(value, bool) or count < low:
        raise SpecnbError(f"{name} is {value!r}; expected an integer >= {low}")
    return count


def _array(name: str, values: Any) -> np.ndarray:
    try:
        return to_numpy(values)
    except (TypeError, ValueError) as error:
        raise SpecnbError(f"{name} is no array ({error}); expected rows of one length") from None


def _numbers(name: str, values: Any) -> np.ndarray:
    """Return float64, or an object array of Fractions where exact numbers came in."""
    array = _array(name, values)
    if array.dtype.kind in "biuf":
        return array.astype(np.float64)
    try:
        return np.asarray(np.frompyfunc(_exact, 1, 1)(array))
    except (TypeError, ValueError, OverflowError) as error:
        raise SpecnbError(f"{name} is {describe(array)} ({error}); expected finite numbers") from None


def _exact(value: Any) -> Fraction:
    if isinstance(value, str | bytes):
        raise TypeError(f"{value!r} is a text")
    return Fraction(value)


def _row(name: str, values: Any) -> np.ndarray:
    """Return rows as numbers, refusing what no law can be: a NaN, an infinity, a negative probability."""
    array = _numbers(name, values)
    bad = np.argwhere(~((array >= 0) & (array < np.inf)).astype(bool))
    if len(bad):
        at = tuple(map(int, bad[0]))
        raise SpecnbError(f"entry {at} of {name} is {array[at]}; expected a probability, finite and >= 0")
    return array


def _one_row(name: str, values: Any) -> np.ndarray:
    """Return a law [V]."""
    row = _row(name, values)
    if row.ndim != 1:
        raise SpecnbError(f"{name} has shape {row.shape}; expected one row [V]")
    _check_mass(row[None], lambda _: name)
    return row


def _check_mass(rows: np.ndarray, name: Callable[[int], str]) -> None:
    """Raise unless every one of the rows [N, V] sums to 1; `name` says which row it is."""
    mass = rows.sum(axis=1)
    off = mass != 1 if rows.dtype == object else abs(mass - 1) > MASS_TOLERANCE
    if off.any():
        at = int(off.argmax())
        expected = "exactly 1" if rows.dtype == object else f"1 within {MASS_TOLERANCE:g}"
        raise SpecnbError(f"{name(at)} sums to {mass[at]}; expected {expected}: divide the row by its sum")


def _arithmetic(p: np.ndarray, q: np.ndarray) -> Arithmetic:
    """Return what computes with both rows, after checking that they belong together."""
    if p.shape[-1] != q.shape[-1]:
        raise SpecnbError(f"p has rows of {p.shape[-1]} entries and q of {q.shape[-1]}; expected one vocabulary")
    if q.size and p.dtype != q.dtype:
        raise SpecnbError("p and q mix floats and Fractions; expected one kind of number")
    return EXACT if p.dtype == object else FLOAT64


def _batched(array: np.ndarray, ndim: int) -> np.ndarray:
    return array[None] if array.ndim == ndim - 1 else array


def _vocabulary(draft: np.ndarray, q: np.ndarray | None, p: np.ndarray) -> int:
    """Return the wider vocabulary; raise where the shapes don't belong together."""
    B, G = draft.shape
    for name, rows, count in (("p", p, G + 1), ("q", q, G)):
        if rows is not None and (rows.ndim != 3 or rows.shape[:2] != (B, count)):
            raise SpecnbError(f"{name} has shape {rows.shape}; expected ({B}, {count}, V) for draft {draft.shape}")
    return max(p.shape[2], 0 if q is None else q.shape[2])


def _draft_rows(draft: np.ndarray, q: np.ndarray | None, p: np.ndarray, V: int, onehot: Any) -> np.ndarray:
    """Return q [B, G, V], one-hot at the draft for the rows that are declared so."""
    points = rules.point(draft, np.zeros((*draft.shape, V), p.dtype))
    declared = np.ones(len(draft), bool) if q is None else np.zeros(len(draft), bool)
    if onehot is not None:
        onehot = np.atleast_1d(_array("onehot", onehot))
        if onehot.dtype != bool or onehot.shape != declared.shape:
            raise SpecnbError(f"onehot is {describe(onehot)}; expected bool [{len(draft)}]")
        declared |= onehot
    return points if q is None else np.where(declared[:, None, None], points, _widen(q, V))


def _widen(rows: np.ndarray, V: int) -> np.ndarray:
    """Return rows zero-extended to a vocabulary of V ids."""
    return np.concatenate([rows, np.zeros((*rows.shape[:2], V - rows.shape[2]), rows.dtype)], axis=2)
