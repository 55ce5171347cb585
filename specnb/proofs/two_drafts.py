"""A rule's own law, read for two drafts: after every first draft x come rows p', q' of its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from sympy import Symbol

from specnb import rules
from specnb.errors import SpecnbError
from specnb.proofs.cases import Case, block_cases, cases
from specnb.proofs.reading import carried, require_equal
from specnb.proofs.rows import Combination, combinations, known_in, laws, name_of, next_law
from specnb.proofs.steps import Step
from specnb.rules import Rule
from specnb.symbols import DECIDED, least, sign

STATEMENTS = (
    ("A first draft $x$ is kept, with the second or without, with probability $a = \\min(1, p_x/q_x)$, whatever the "
     "rows after it. So the first token is as in the lemma.",
     r"P(n \ge 1 \mid x) = \min(1, p_x / q_x)"),
    ("If it isn't kept, the correction is that of the rule `token`.",
     r"P(v \mid n = 0, x) = \frac{(p_v - q_v)_+}{\sum_w (p_w - q_w)_+}"),
    ("The second token follows the target's row after $x$.",
     r"q'_v P(n = 2 \mid x, v) + \sum_y q'_y P(n = 1 \mid x, y) \, P(v \mid n = 1, x, y) = a \, p'_v"),
    ("After two drafts that can be accepted, the bonus has the law $s$ of the target's next row.",
     r"P(v \mid n = 2, x, y) = s_v"),
    ("As many drafts are accepted, in expectation, as by the rule `token`, or more.",
     r"E(n \mid x) - E_{\mathrm{token}}(n \mid x) \ge 0"),
)  # fmt: skip


@dataclass(frozen=True)
class Paths:
    """Laws p, q of the first row, a draft x from it, and laws p2, q2 and s after it, [V] each."""

    name: str
    x: int
    p: Any
    q: Any
    p2: Any
    q2: Any
    s: Any

    @property
    def kept(self) -> Any:
        """Return min(1, p/q) of the first draft."""
        return least(1, self.p[self.x] / self.q[self.x])

    @property
    def accepted_by_token(self) -> Any:
        """Return the expected number of drafts that the rule `token` keeps after this first one was drafted."""
        second = rules.acceptance(self.q2, self.p2, DECIDED)
        return (1 + (self.q2 * second).sum()) * self.kept

    @property
    def laws(self) -> dict[str, Any]:
        """Return all rows by name."""
        return {"p": self.p, "q": self.q, "p'": self.p2, "q'": self.q2, "s": self.s}

    def law_of(self, rule: Rule) -> tuple[Any, Any]:
        """Return a rule's conditional law on the paths x, y, one for each y: [V, 3] and [V, 3, V]."""
        V = len(self.p)
        draft = np.array([(self.x, y) for y in range(V)])
        q, p = np.array([self.q, self.q2]), np.array([self.p, self.p2, self.s])
        return rule.law(draft, np.tile(q, (V, 1, 1)), np.tile(p, (V, 1, 1)), DECIDED)


def two_drafts(rule: Rule, vocabulary: int) -> tuple[Step, ...]:
    """Return the verified steps of a rule that is lossless at γ = 2, whatever the rows after a first draft.

    Raises `SpecnbError` with the case, and an example, in which one is false, and for a rule that asks a sign that
    the cases of p', q' and a·p' leave open.
    """
    verified = 0
    for paths in _paths(vocabulary):
        carried(rule, paths.name, lambda paths=paths: _check(rule, paths))
        verified += 1
    note = f"Verified in {verified} combinations of cases: of $p, q$, the draft $x$, and $p', q', a\\,p'$ after it."
    return tuple(Step(claim, statement, unlisted=verified, note=note) for claim, statement in STATEMENTS)


def _check(rule: Rule, paths: Paths) -> None:
    """Verify the statements, in order, for these rows."""
    lengths, correction = paths.law_of(rule)
    alike, wrong = (f"rule {rule.name!r} {fault} for {paths.name}" for fault in (
        "doesn't treat a first draft as 'token' does", "isn't lossless"))  # fmt: skip
    reached = [paths.q2 * lengths[:, n] for n in range(3)]  # with each second draft, [V]
    require_equal(f"{alike}, P(n >= 1)", (paths.q2 - reached[0]).sum(), paths.kept, paths.laws)
    residual = rules.residual(paths.q, paths.p, DECIDED)
    require_equal(f"{alike}, its correction", correction[reached[0] != 0, 0], residual, paths.laws)
    second = reached[2] + (reached[1][:, None] * correction[:, 1]).sum(0)
    require_equal(f"{wrong}, its second token", second, paths.p2 * paths.kept, paths.laws)
    require_equal(f"{wrong}, its bonus", correction[reached[2] != 0, 2], paths.s, paths.laws)
    if sign((reached[1] + 2 * reached[2]).sum() - paths.accepted_by_token) < 0:
        raise SpecnbError(f"rule {rule.name!r} accepts fewer drafts than 'token' for {paths.name}")


def _paths(vocabulary: int) -> Iterator[Paths]:
    """Yield laws for every combination of cases of the first row, first draft that can come, and rows after it.

    Drafts with p < q come first: after them `block` differs from `token`, and so do mistakes.
    """
    for first in combinations(*(cases(v) for v in range(1, vocabulary + 1))):
        for x in sorted(range(vocabulary), key=lambda x: first[x].side):
            if first[x].q != 0:
                after = [_cases_after(first[x], f"{{{v}|{x + 1}}}") for v in range(1, vocabulary + 1)]
                yield from (_paths_of(first, x, second) for second in combinations(*after))


def _cases_after(drafted: Case, label: str) -> tuple[Case, ...]:
    """Return the cases of a token in the rows after a draft: of a·p' too where 0 < a < 1."""
    if drafted.p == 0 or drafted.side >= 0:
        return cases(label)
    return block_cases(label, Symbol("a"), drafted.p / drafted.q)


def _paths_of(first: Combination, x: int, second: Combination) -> Paths:
    known = known_in(first, second)
    p2, q2 = laws(second, known)
    name = f"{name_of(first)}, x = {x + 1}, {name_of(second)}"
    return Paths(name, x, *laws(first, known), p2, q2, next_law(p2, known))
