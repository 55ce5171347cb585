"""Exact laws of what verification emits: one position, one step, several steps."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from fractions import Fraction  # noqa: F401  for the doctests
from typing import Any

import numpy as np

from specnb import rules
from specnb.arithmetic import Arithmetic
from specnb.errors import SpecnbError
from specnb.laws.rows import Rows, alike, arithmetic_of, as_count, as_numbers, one_row, tree_of, trees_of
from specnb.laws.scenarios import Change, Scenario, as_scenario
from specnb.rules import Rule

LAW_TOLERANCE = 1e-9
"""How far from 1 a law's sum may be, and how far below 0 an entry: far above rounding, far below any mistake."""

Tree = list[np.ndarray]
"""Rows [N, V^k, V] of N examples after every prefix of k = 0, 1, … tokens, in the prefixes' order."""


def total_variation(p: Any, q: Any) -> Any:
    """Return ½ Σ|p − q| of two laws of the same shape, which is 1 − Σ min(p, q).

    >>> total_variation([Fraction(1, 3), Fraction(2, 3)], [Fraction(2, 3), Fraction(1, 3)])
    Fraction(1, 3)
    """
    p, q = alike(as_numbers("p", p), as_numbers("q", q))
    if p.shape != q.shape:
        raise SpecnbError(f"laws of shapes {p.shape} and {q.shape} can't be compared; expected equal shapes")
    return np.abs(p - q).sum() / 2


def emitted_law(*, p: Any, q: Any, drawn: Any = None) -> tuple[np.ndarray, Any]:
    """Return the law [V] of the token that one position emits under the rule `token`, and the share of drafts kept.

    p, q: rows [V] of the target and the draft, each of sum 1. drawn: the row that drafts are really drawn from, if it
    isn't the q that the rule is given. The law is added up from what happens: a draft is kept, or rejected and
    corrected from the residual. Leviathan et al. claim that without `drawn` it equals p, and the share Σ min(p, q)
    (appendix A.1); nothing here assumes so.

    >>> half, one_hot = [Fraction(1, 2), Fraction(1, 2)], [Fraction(1), Fraction(0)]
    >>> emitted_law(p=half, q=one_hot)
    (array([Fraction(1, 2), Fraction(1, 2)], dtype=object), Fraction(1, 2))
    >>> emitted_law(p=half, q=half, drawn=one_hot)
    (array([Fraction(1, 1), Fraction(0, 1)], dtype=object), Fraction(1, 1))
    """
    p, q = one_row("p", p), one_row("q", q)
    p, q, drawn = alike(p, q, q if drawn is None else one_row("drawn", drawn))
    xp = arithmetic_of(p, q)
    arithmetic_of(drawn, q, "drawn")
    accepted = drawn * xp.where(q, rules.acceptance(q, p, xp), 0)
    rejected = (drawn - accepted).sum()
    return accepted + rejected * rules.residual(q, p, xp), accepted.sum()


def joint_law(rule: str | Rule | Scenario, *, p: Rows, q: Rows, gamma: int, steps: int | None = None) -> np.ndarray:
    """Return the law of the first steps·(γ+1) tokens when drafts come from q and the rule verifies them.

    p, q: a row [V], or a function from a prefix (tuple of ids) to its row; rows sum to 1. gamma >= 0 drafts per
    step; steps >= 1, None is the scenario's own, 1 for a rule. After `steps` verification steps, which may emit
    fewer tokens, the rest is drawn from p itself (from promised(p) in a scenario that promises another law); so a
    rule is lossless exactly if the result is the target's own law, `target_law(p, steps·(γ+1))`. Shape
    (V,)·steps·(γ+1).

    >>> half = [Fraction(1, 2), Fraction(1, 2)]
    >>> joint_law("token", p=half, q=[Fraction(1), Fraction(0)], gamma=1).tolist()
    [[Fraction(1, 4), Fraction(1, 4)], [Fraction(1, 4), Fraction(1, 4)]]
    """
    use = as_scenario(rule)
    gamma, steps = as_count("gamma", gamma, 0), as_count("steps", use.steps if steps is None else steps, 1)
    depth = steps * (gamma + 1)
    target, drafted, xp = trees_of(p, q, depth)
    mass = joint_laws(use, [rows[None] for rows in target], [rows[None] for rows in drafted], gamma, steps, xp)
    return mass.reshape((target[0].shape[-1],) * depth)


def target_law(p: Rows, tokens: int) -> np.ndarray:
    """Return the law of that many tokens (at least 1) drawn one by one from p, shape (V,)·tokens."""
    tokens = as_count("tokens", tokens, 1)
    tree = alike(*tree_of("p", p, tokens))
    return target_laws([rows[None] for rows in tree]).reshape((tree[0].shape[-1],) * tokens)


def accepted_law(rule: str | Rule | Scenario, *, p: Rows, q: Rows, gamma: int) -> np.ndarray:
    """Return the law [γ+1] of the number of accepted drafts in one step from the empty prefix.

    >>> toy = dict(p=[Fraction(1, 3), Fraction(2, 3)], q=[Fraction(2, 3), Fraction(1, 3)])
    >>> accepted_law("token", **toy, gamma=2).tolist()
    [Fraction(1, 3), Fraction(2, 9), Fraction(4, 9)]
    >>> accepted_law("block", **toy, gamma=2).tolist()
    [Fraction(1, 3), Fraction(1, 9), Fraction(5, 9)]
    """
    gamma = as_count("gamma", gamma, 0)
    target, drafted, xp = trees_of(p, q, gamma + 1)
    return accepted_laws(
        as_scenario(rule), [rows[None] for rows in target], [rows[None] for rows in drafted], gamma, xp
    )[0]


def expected_accepted(rule: str | Rule | Scenario, *, p: Rows, q: Rows, gamma: int) -> Any:
    """Return the expected number of accepted drafts in one step; a step emits one token more.

    >>> toy = dict(p=[Fraction(1, 3), Fraction(2, 3)], q=[Fraction(2, 3), Fraction(1, 3)])
    >>> expected_accepted("token", **toy, gamma=3)
    Fraction(38, 27)
    """
    accepted = accepted_law(rule, p=p, q=q, gamma=gamma)
    return (accepted * np.arange(len(accepted))).sum()


def joint_laws(use: Scenario, target: Tree, drafted: Tree, gamma: int, steps: int, xp: Arithmetic) -> np.ndarray:
    """Return the joint laws [N, V^(steps·(γ+1))] of N examples at once; `joint_law` has one."""
    if use.uniforms == "reused":
        each = [[[rows[i : i + 1] for rows in tree] for tree in (target, drafted)] for i in range(len(target[0]))]
        return np.concatenate([_with_reused_uniforms(use, p, q, gamma, steps, xp) for p, q in each])
    table = [_paths(use, target, drafted, k, gamma, xp) for k in range((steps - 1) * (gamma + 1) + 1)]
    return _compose(table, [promised(use, rows, xp) for rows in target], gamma, steps)


def target_laws(target: Tree) -> np.ndarray:
    """Return the laws [N, V^depth] of tokens drawn one by one from the rows."""
    mass = np.ones((len(target[0]), 1), target[0].dtype)
    for rows in target:
        mass = _extend(mass, rows)
    return mass


def promised(use: Scenario, rows: np.ndarray, xp: Arithmetic) -> np.ndarray:
    """Return the rows whose law a scenario promises, where p's are `rows`."""
    return changed("promised", use.promised, rows, xp)


def changed(name: str, change: Change | None, rows: np.ndarray, xp: Arithmetic) -> np.ndarray:
    """Return rows as a scenario changes them, or raise unless they are still laws of the same shape."""
    if change is None:
        return rows
    after = np.asarray(change(rows.copy(), xp))
    if after.shape != rows.shape:
        raise SpecnbError(f"{name} made rows {after.shape} of rows {rows.shape}; expected the same shape")
    if len(off := not_laws(after)):
        raise SpecnbError(f"{name} made {after[tuple(off[0])].tolist()} of a row; expected a law: >= 0, of sum 1")
    return after


def law_of(rule: Rule, draft: Any, q: Any, p: Any, xp: Arithmetic) -> tuple[np.ndarray, np.ndarray]:
    """Return the law of a rule, or raise unless it consists of laws: that of n, and those of the corrections."""
    answer = rule.law(draft, q.copy(), p.copy(), xp)
    if not isinstance(answer, tuple) or len(answer) != 2:
        raise SpecnbError(f"the law of {rule.label} returned {type(answer).__name__}; expected lengths, correction")
    lengths, correction = map(np.asarray, answer)
    for name, law, shape in (("lengths", lengths, p.shape[:-1]), ("correction", correction, p.shape)):
        if law.shape != shape:
            raise SpecnbError(f"{name} of {rule.label} has shape {law.shape}; expected {shape} for p {p.shape}")
        if len(off := not_laws(law)):
            at = tuple(map(int, off[0]))
            raise SpecnbError(
                f"{name} of {rule.label} is {law[at].tolist()} for the draft {draft[at[: draft.ndim - 1]].tolist()}; "
                "expected a law: nowhere negative, of sum 1"
            )
    return lengths, correction


def not_laws(rows: np.ndarray) -> np.ndarray:
    """Return where, in all axes but the last, entries are negative or don't sum to 1 within `LAW_TOLERANCE`."""
    fits = (rows >= -LAW_TOLERANCE).all(-1) & (abs(rows.sum(-1) - 1) <= LAW_TOLERANCE)
    return np.argwhere(~fits.astype(bool))


def accepted_laws(use: Scenario, target: Tree, drafted: Tree, gamma: int, xp: Arithmetic) -> np.ndarray:
    """Return the laws [N, γ+1] of the number of accepted drafts in the first step."""
    weight, lengths, _ = _paths(use, target, drafted, 0, gamma, xp)
    return (weight[..., None] * lengths).sum(1)


def _compose(table: list, target: Tree, gamma: int, steps: int) -> np.ndarray:
    """Return the joint law of steps whose paths after k tokens are table[k]; what they leave is the target's."""
    N, _, V = target[0].shape
    started = [np.full((N, V**k), int(k == 0), target[0].dtype) for k in range(len(target) + 1)]
    for _ in range(steps):
        ended = [np.zeros_like(mass) for mass in started]
        for k, mass in enumerate(started[: len(table)]):
            if not mass.any():
                continue
            weight, lengths, correction = table[k]
            weight = np.repeat(mass, V**gamma, axis=1) * weight
            for n in range(gamma + 1):
                emitted = (weight * lengths[..., n])[..., None] * correction[..., n, :]
                emitted = emitted.reshape(N, V ** (k + n), V ** (gamma - n), V).sum(2)
                ended[k + n + 1] += emitted.reshape(N, -1)
        started = ended
    mass = started[0]
    for rows, newly in zip(target, started[1:], strict=True):
        mass = _extend(mass, rows) + newly
    return mass


def _paths(use: Scenario, target: Tree, drafted: Tree, k: int, gamma: int, xp: Arithmetic) -> tuple:
    """Return, for every path of γ drafts after every prefix of k, its probability and the rule's law on it.

    Shapes [N, paths], [N, paths, γ+1], [N, paths, γ+1, V], where paths = V^(k+γ).
    """
    N, _, V = target[0].shape
    path = np.arange(V ** (k + gamma))
    places = [V ** (gamma - i) for i in range(gamma + 1)]
    shape, dtype = (N, len(path), gamma), target[0].dtype
    draft, q = np.empty(shape[1:], np.int64), np.empty((*shape, V), dtype)
    p = np.empty((*shape[:2], gamma + 1, V), dtype)
    for i, place in enumerate(places):
        p[:, :, i] = target[k + i][:, path // place]
        if i < gamma:
            q[:, :, i] = drafted[k + i][:, path // place]
            draft[:, i] = path // places[i + 1] % V
    draft = np.broadcast_to(draft, shape)
    drawn = np.prod(xp.at(changed("drafting", use.drafting, q, xp), draft), axis=-1)  # before a law writes into q
    lengths, correction = law_of(rules.get(use.rule), draft, q, p, xp)
    if use.uniforms == "shared":
        lengths = _with_one_uniform(lengths, xp)
    if use.bonus == "draft":
        bonus = drafted[k + gamma][:, path][:, :, None]
        correction = np.concatenate([correction[:, :, :gamma], bonus], axis=2)
    return drawn, lengths, correction


def hazards(lengths: np.ndarray, xp: Arithmetic) -> np.ndarray:
    """Return P(draft i is kept | all before it are), [..., γ], of laws of n [..., γ+1]; 0 where that never happens."""
    at_least = np.flip(np.cumsum(np.flip(lengths, -1), -1), -1)
    return xp.divide(at_least[..., 1:], at_least[..., :-1])


def _with_one_uniform(lengths: np.ndarray, xp: Arithmetic) -> np.ndarray:
    """Return the law of n if one uniform judges every draft: all are kept up to the first smaller hazard."""
    one = xp.ones(lengths[..., None, :])
    at_least = [one]
    for i in range(lengths.shape[-1] - 1):
        at_least.append(xp.min(at_least[-1], hazards(lengths, xp)[..., i : i + 1]))
    at_least = np.concatenate([*at_least, 0 * one], axis=-1)
    return at_least[..., :-1] - at_least[..., 1:]


def _with_reused_uniforms(
    use: Scenario, target: Tree, drafted: Tree, gamma: int, steps: int, xp: Arithmetic
) -> np.ndarray:
    """Return the joint law [1, …] of steps that judge and correct by the same uniforms each time; drafts are fresh.

    Given the uniforms, every step is decided; they are summed over the cells between a rule's breakpoints.
    """
    table = [_paths(use, target, drafted, k, gamma, xp) for k in range((steps - 1) * (gamma + 1) + 1)]
    judged = [hazards(lengths, xp) for _, lengths, _ in table]
    ends = [np.cumsum(correction, -1) for _, _, correction in table]
    cuts = [np.concatenate([h[..., i].reshape(-1) for h in judged]) for i in range(gamma)]
    cuts.append(np.concatenate([e.reshape(-1) for e in ends]))
    promise = [promised(use, rows, xp) for rows in target]
    total: Any = 0
    for volume, uniforms in _cells(cuts):
        decided = [
            (weight, *_decided(h, e, uniforms)) for (weight, _, _), h, e in zip(table, judged, ends, strict=True)
        ]
        total = total + volume * _compose(decided, promise, gamma, steps)
    return total


def _cells(cuts: list[np.ndarray]) -> Iterator[tuple[Any, list[Any]]]:
    """Yield the volume and the midpoints of every cell of the unit cube between the cuts of each axis."""
    axes = []
    for values in cuts:
        edges = sorted({0, 1, *(value for value in values.tolist() if 0 < value < 1)})
        axes.append([(b - a, (a + b) / 2) for a, b in itertools.pairwise(edges)])
    for cell in itertools.product(*axes):
        volume = 1
        for width, _ in cell:
            volume = volume * width
        yield volume, [middle for _, middle in cell]


def _decided(judged: np.ndarray, ends: np.ndarray, uniforms: list[Any]) -> tuple[np.ndarray, np.ndarray]:
    """Return the law of n and of the final token, both one-hot, that given uniforms decide."""
    gamma, V = judged.shape[-1], ends.shape[-1]
    passes = np.array([judged[..., i] > uniforms[i] for i in range(gamma)]).reshape(gamma, *judged.shape[:-1])
    n = np.cumprod(passes, axis=0).sum(0)
    token = (ends <= uniforms[gamma]).sum(-1)
    return (n[..., None] == np.arange(gamma + 1)).astype(int), (token[..., None] == np.arange(V)).astype(int)


def _extend(mass: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return the masses [N, V^(k+1)] of prefixes one token longer, drawn from the rows [N, V^k, V]."""
    return (mass[..., None] * rows).reshape(len(mass), -1)
