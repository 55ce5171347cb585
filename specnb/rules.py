"""Every verification rule as its conditional law, written once for numbers, fractions, symbols and tensors.

A rule is a function law(draft, q, p, xp) of a drafted path and its rows,

    draft int [..., G], q [..., G, V], p [..., G+1, V]  →  lengths [..., G+1], correction [..., G+1, V]

with lengths[n] = P(accept exactly n drafts) and correction[n] = the law of the token emitted after n. It does
all arithmetic by + − × and `xp` (`specnb.arithmetic`), so the same lines give numbers, exact laws, proofs and, in
`specnb.verify`, samples. A new rule is such a function in a `Rule`; what real code got wrong is in
`specnb.mistakes`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from specnb.arithmetic import Arithmetic
from specnb.errors import SpecnbError


def acceptance(q: Any, p: Any, xp: Arithmetic) -> Any:
    """Return min(1, p/q) elementwise: the probability to keep a draft (Leviathan et al., section 2.3)."""
    return xp.min(1, xp.divide(p, q))


def residual(q: Any, p: Any, xp: Arithmetic) -> Any:
    """Return the law of the correction, (p − q)+ over its sum; p over its own where p − q leaves nothing."""
    return normalised_or(xp.max(p - q, 0), p, xp)


def normalised(weights: Any, xp: Arithmetic) -> Any:
    """Return weights over their sum; zeros stay zeros."""
    return xp.divide(weights, xp.sum(weights))


def normalised_or(weights: Any, otherwise: Any, xp: Arithmetic) -> Any:
    """Return weights over their sum, and where that is 0 the other weights over theirs."""
    return normalised(xp.where(xp.sum(weights), weights, otherwise), xp)


def draft_by_draft(accept: Any, corrections: Any, p: Any, xp: Arithmetic) -> tuple[Any, Any]:
    """Return the law of a rule that judges drafts in turn and stops at the first that it rejects.

    accept [..., G]: P(draft i is kept | all before it are). corrections [..., G, V]: the law of the token that
    replaces it. p [..., G+1, V]: its last row, over its sum, is the law of the bonus.
    """
    G = accept.shape[-1]
    kept, lengths = xp.ones(p), []
    for i in range(G):
        lengths.append(kept * (1 - accept[..., i : i + 1]))
        kept = kept * accept[..., i : i + 1]
    return xp.join([*lengths, kept], -1), xp.join([corrections, normalised(p[..., G:, :], xp)], -2)


def token(draft, q, p, xp):
    """Keep a draft with probability min(1, p/q); correct a rejection from (p − q)+, else draw a bonus."""
    drafted = p[..., : draft.shape[-1], :]
    accept = acceptance(xp.at(q, draft), xp.at(drafted, draft), xp)
    return draft_by_draft(accept, residual(q, drafted, xp), p, xp)


def match(draft, q, p, xp):
    """Keep a draft while the target's own draw agrees with it: the token rule with a one-hot draft row."""
    return token(draft, xp.point(draft, p[..., : draft.shape[-1], :]), p, xp)


def block(draft, q, p, xp):
    """Keep the longest prefix whose own test succeeds, whatever became of the tests before it.

    With a_0 = 1 and a_i = min(1, a_{i−1}·p/q), test i < γ succeeds with probability S_i/(S_i + 1 − a_i), where
    S_i = Σ(a_i·p_{i+1} − q_{i+1})+, and test γ with probability a_γ; the correction after n is (a_n·p − q)+.
    """
    G = draft.shape[-1]
    drafted = p[..., :G, :]
    ratio = xp.divide(xp.at(drafted, draft), xp.at(q, draft))
    a, lengths, corrections = xp.ones(p), [xp.ones(p)], []
    for i in range(G):
        row = drafted[..., i : i + 1, :]
        rest = xp.max(a[..., None] * row - q[..., i : i + 1, :], 0)
        if i:
            S = xp.sum(rest)[..., 0]
            lengths = _rescued(lengths, xp.where(S + (1 - a), xp.divide(S, S + (1 - a)), 1))
        corrections.append(normalised_or(rest, row, xp))
        a = xp.min(1, a * ratio[..., i : i + 1])
    if G:
        lengths = _rescued(lengths, a)
    return xp.join(lengths, -1), xp.join([*corrections, normalised(p[..., G:, :], xp)], -2)


def _rescued(lengths: list[Any], success: Any) -> list[Any]:
    """Return the law of n after one test more, whose success keeps the longer prefix."""
    return [*(length * (1 - success) for length in lengths), success]


def coupled(draft, q, p, xp):
    """Keep a draft while the target's token, drawn by the same uniform as the draft, is the same.

    Both are picked by inverting a distribution function, so they agree where the two intervals of one token
    overlap; the correction is the target's token, given that the uniform lay in the draft's interval of q.
    """
    drafted = normalised(p[..., : draft.shape[-1], :], xp)
    ends = normalised(q, xp).cumsum(-1)
    low, high = (xp.at(edge, draft)[..., None] for edge in (ends - normalised(q, xp), ends))
    overlap = xp.max(xp.min(drafted.cumsum(-1), high) - xp.max(drafted.cumsum(-1) - drafted, low), 0)
    accept = xp.divide(xp.at(overlap, draft), xp.at(normalised(q, xp), draft))
    others = xp.where(xp.point(draft, drafted), 0, overlap)
    return draft_by_draft(accept, normalised_or(others, drafted, xp), p, xp)


def _lenient(draft, q, p, xp, *, l, residual_of):  # noqa: E741  the paper's own letter
    drafted = p[..., : draft.shape[-1], :]
    l = xp.number(l)  # noqa: E741
    accept = acceptance(l * xp.at(q, draft), xp.at(drafted, draft), xp)
    return draft_by_draft(accept, residual(q if residual_of == "p - q" else l * q, drafted, xp), p, xp)


def _ensemble(draft, q, p, xp, *, w):
    G, w = draft.shape[-1], xp.number(w)
    return token(draft, q, xp.join([w * p[..., :G, :] + (1 - w) * q, p[..., G:, :]], -2), xp)


def _typical(draft, q, p, xp, *, epsilon, delta):
    drafted = p[..., : draft.shape[-1], :]
    entropy = -xp.sum(drafted * xp.log(xp.where(drafted, drafted, 1)))[..., 0]
    threshold = xp.min(xp.number(epsilon), xp.number(delta) * xp.exp(-entropy))
    accept = xp.where(xp.at(drafted, draft) - threshold, 1.0, 0.0)
    return draft_by_draft(accept, normalised(drafted, xp), p, xp)


@dataclass(frozen=True)
class Rule:
    """A verification rule: its name, its conditional law, where it comes from, and whether it is lossless.

    parameters: their values, part of the label. formula: how it accepts and corrects, in LaTeX. sampler: which
    function of a backend decides it; the default decides any rule by its law. reads_q: whether that needs q's rows.
    exact: whether the law also takes Fractions.
    """

    name: str
    law: Callable[..., tuple[Any, Any]] = field(repr=False, compare=False)
    reference: str
    lossless: bool
    parameters: Mapping[str, Any] = field(default_factory=dict)
    formula: str = field(default="", repr=False, compare=False)
    sampler: str = field(default="verify_by_law", repr=False, compare=False)
    reads_q: bool = field(default=True, repr=False, compare=False)
    exact: bool = field(default=True, repr=False, compare=False)

    @property
    def label(self) -> str:
        """Return the name with its parameters, which verdicts and generations carry."""
        values = ", ".join(f"{name}={value}" for name, value in self.parameters.items())
        return f"{self.name}({values})" if values else self.name

    def __str__(self) -> str:
        """Return the label."""
        return self.label

    def __repr__(self) -> str:
        return f"Rule({self.label!r}, {'lossless' if self.lossless else 'lossy'})"

    def _repr_markdown_(self) -> str:
        from specnb.display import rule_markdown

        return rule_markdown(self)


class Decided:
    """What a rule decided, which carries its label."""

    decided_by: Rule

    @property
    def rule(self) -> str:
        """Return the rule's name, with its parameters if it has any."""
        return self.decided_by.label

    @property
    def lossless(self) -> bool:
        """Tell whether the rule keeps the target's law, as its author says."""
        return self.decided_by.lossless


RULES = {
    rule.name: rule
    for rule in (
        Rule("token", token, "Leviathan, Kalman, Matias 2023, arXiv:2211.17192, Algorithm 1", lossless=True,
             formula=r"u\,q(x) < p(x), \quad \text{else } (p - q)_+", sampler="verify"),
        Rule("match", match, "the target's own draw, compared; the token rule with q one-hot", lossless=True,
             formula=r"u < p(x), \quad \text{else } p \text{ without } x", sampler="verify", reads_q=False),
        Rule("block", block, "Sun et al. 2024, arXiv:2403.10444", lossless=True,
             formula=r"a_i = \min(1, a_{i-1} p/q), \quad u_i < \frac{S_i}{S_i + 1 - a_i}, \quad (a_n p - q)_+",
             sampler="verify_block"),
        Rule("coupled", coupled, "inverse-CDF coupling: draft and target share a position's uniform", lossless=True,
             formula=r"F_q^{-1}(u) = F_p^{-1}(u), \quad \text{else } F_p^{-1}(u)", sampler="verify_coupled",
             reads_q=False),
    )
}  # fmt: skip
"""The lossless rules by name. The lossy ones are functions of their parameters: nobody reaches one by a typo."""


def lenient(l: Any, residual: str = "p - q") -> Rule:  # noqa: E741  the paper's own letter
    """Return the lossy rule that keeps a draft with probability min(1, p/(l·q)), 0 < l <= 1 (1 is `token`).

    residual: "p - q" or "p - lq", the law of corrections before it is normalised. Source: the leniency of
    Leviathan et al. 2023, appendix A.5.

    >>> lenient(0.5).label
    'lenient(l=0.5, residual=p - q)'
    """
    _require("l", l, lambda: 0 < l <= 1, "0 < l <= 1")
    _require("residual", residual, lambda: residual in ("p - q", "p - lq"), "'p - q' or 'p - lq'")
    return Rule("lenient", partial(_lenient, l=l, residual_of=residual),
                "Leviathan, Kalman, Matias 2023, arXiv:2211.17192, appendix A.5", lossless=False,
                parameters={"l": l, "residual": residual},
                formula=r"u\,l\,q(x) < p(x)")  # fmt: skip


def ensemble(w: Any) -> Rule:
    """Return the lossy rule that verifies against w·p + (1 − w)·q, 0 <= w <= 1 (1 is `token`); the bonus is p's.

    Its drafted positions have exactly that law, of total variation (1 − w)·TV(p, q) from p.

    >>> ensemble(0.75).lossless
    False
    """
    _require("w", w, lambda: 0 <= w <= 1, "0 <= w <= 1")
    return Rule("ensemble", partial(_ensemble, w=w), "the token rule with the target w p + (1 - w) q",
                lossless=False, parameters={"w": w}, formula=r"p \to w p + (1 - w) q")  # fmt: skip


def typical(epsilon: float = 0.3, delta: float = 0.09) -> Rule:
    """Return the lossy rule that keeps a draft iff p(x) > min(ε, δ·exp(−H(p))), else draws from p; floats only.

    The entropy takes logarithms, which NumPy and torch round differently: here alone they may differ in a token.

    epsilon, delta > 0; H is the entropy of p in nats. Source: Cai et al. 2024, arXiv:2401.10774, section 2.3.1.

    >>> typical().label
    'typical(epsilon=0.3, delta=0.09)'
    """
    _require("epsilon", epsilon, lambda: epsilon > 0, "epsilon > 0")
    _require("delta", delta, lambda: delta > 0, "delta > 0")
    return Rule("typical", partial(_typical, epsilon=epsilon, delta=delta),
                "Cai et al. 2024 (Medusa), arXiv:2401.10774, section 2.3.1", lossless=False,
                parameters={"epsilon": epsilon, "delta": delta},
                formula=r"p(x) > \min(\epsilon, \delta e^{-H(p)})", exact=False)  # fmt: skip


LOSSY = {"lenient": "lenient(l=0.5)", "ensemble": "ensemble(w=0.75)", "typical": "typical()"}


def get(rule: str | Rule) -> Rule:
    """Return the rule of that name; a `Rule` comes back as it is.

    >>> get("token").lossless
    True
    """
    if isinstance(rule, Rule):
        return rule
    if isinstance(rule, str) and rule in RULES:
        return RULES[rule]
    if isinstance(rule, str) and rule in LOSSY:
        raise SpecnbError(f"rule {rule!r} is lossy and has parameters; pass specnb.rules.{LOSSY[rule]}, say")
    raise SpecnbError(f"rule {rule!r} is unknown; expected one of {', '.join(RULES)}, or a Rule")


def _require(name: str, value: Any, fits: Callable[[], Any], expected: str) -> None:
    try:
        good = bool(fits())
    except (TypeError, ValueError):
        good = False
    if not good:
        raise SpecnbError(f"{name} is {value!r}; expected {expected}")
