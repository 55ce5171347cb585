"""A rule in use: who draws the drafts from what, which law is promised, and how uniforms are shared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from specnb import rules
from specnb.errors import SpecnbError
from specnb.rules import Rule

Change = Callable[[Any, Any], Any]
"""A function (rows [..., V], xp) → rows, written like a rule's law."""


@dataclass(frozen=True)
class Scenario:
    """A verification rule in use, right or wrong; what takes a rule in `specnb.laws`, but for `law`, takes one too.

    rule: its name, or a `Rule`. drafting: the drafts are drawn from drafting(q), while q is what the rule is
    given (None: from q). promised: the output should have the law promised(p), while p is what the rule is given
    (None: p). bonus: whose row the bonus is drawn from, "target" or "draft".
    uniforms: "fresh" ones for every draft and step; "shared", one uniform for all drafts of a step; "reused", the
    same ones in every step. The last two take the rule to judge draft by draft, as `specnb.verify` does with a
    rule that it knows by its law. steps: how many steps a law spans unless its caller says otherwise.
    """

    rule: str | Rule
    drafting: Change | None = None
    promised: Change | None = None
    bonus: str = "target"
    uniforms: str = "fresh"
    steps: int = 1
    name: str = ""

    def __post_init__(self) -> None:
        rules.get(self.rule)
        for name in ("drafting", "promised"):
            if getattr(self, name) is not None and not callable(getattr(self, name)):
                raise SpecnbError(f"{name} is {getattr(self, name)!r}; expected a function (rows, xp) → rows, or None")
        _one_of("bonus", self.bonus, ("target", "draft"))
        _one_of("uniforms", self.uniforms, ("fresh", "shared", "reused"))
        if type(self.steps) is not int or self.steps < 1:
            raise SpecnbError(f"steps is {self.steps!r}; expected an integer >= 1")

    @property
    def label(self) -> str:
        """Return the scenario's own name, else its rule's label."""
        return self.name or rules.get(self.rule).label


def as_scenario(rule: str | Rule | Scenario) -> Scenario:
    """Return a scenario as it is, and a rule in its proper use."""
    return rule if isinstance(rule, Scenario) else Scenario(rule)


def _one_of(name: str, value: Any, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise SpecnbError(f"{name} is {value!r}; expected one of {', '.join(allowed)}")
