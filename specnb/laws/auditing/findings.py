"""What an audit found, and the verdict that follows from it."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from specnb.laws.auditing.calls import Fault
from specnb.laws.auditing.gtests import GTest
from specnb.laws.auditing.midpoints import Measured
from specnb.laws.auditing.probes import Probed
from specnb.laws.auditing.trials import Trial

ROUNDING = 2.0**-20
"""The total variation that rounding in float32 may explain: a few of its units for each of a handful of changes."""

OBSTACLES = {
    "undecided": "what comes out isn't constant on boxes of the uniforms",
    "refused": "no call returned tokens",
    "off by rounding": "off by no more than float32 rounds, which resolution=2**-18 takes for equal",
}
"""The states of a finding that verify nothing, and what they mean."""


@dataclass(frozen=True)
class Finding:
    """What a sampler did in one trial, and what it should have done.

    target: the law that its tokens should have, [V, …, V]. best: the expected accepted drafts of the rule `block`,
    which no lossless rule exceeds. test: the G-test of a sampler that draws for itself.
    """

    trial: Trial
    measured: Measured
    target: np.ndarray
    best: Fraction
    test: GTest | None = None

    @property
    def total_variation(self) -> Fraction:
        """Return the total variation of the joint law from the target's; mass that led to no tokens is missing."""
        return np.maximum(self.target - self.measured.law, 0).sum()

    @property
    def first_token(self) -> Fraction:
        """Return the same of the first token alone."""
        missing = (self.target - self.measured.law).reshape(len(self.target), -1).sum(1)
        return np.maximum(missing, 0).sum()

    @property
    def state(self) -> str:
        """Return what the law is to the target's: a key of `OBSTACLES`, else "equal" or "different"."""
        undecided = self.measured.lost.get(None, 0)
        failed = sum(self.measured.lost.values()) - undecided
        if failed == 1:
            return "refused"
        excess = np.maximum(self.measured.law - self.target, 0)
        wrong = excess[self.target == 0].any() or excess.sum() > ROUNDING if self.test is None else self.test.fails
        if failed or wrong:
            return "different"
        if undecided:
            return "undecided"
        return "off by rounding" if self.test is None and excess.any() else "equal"


@dataclass(frozen=True, repr=False)
class Audit:
    """Whether a sampler's law is the target's in every trial, and what it does at the boundaries.

    sampler: its name. method: how its law was found. findings: one per trial. probes: what came of each boundary
    probe.
    """

    sampler: str
    method: str
    findings: tuple[Finding, ...]
    probes: tuple[Probed, ...]

    @property
    def verdict(self) -> str:
        """Return LOSSLESS, NOT LOSSLESS or INCONCLUSIVE: of the law, whatever came of the boundary probes."""
        if self.trials("different"):
            return "NOT LOSSLESS"
        return "INCONCLUSIVE" if self.obstacle else "LOSSLESS"

    @property
    def obstacle(self) -> str:
        """Return what keeps laws that don't differ from being verified, or nothing."""
        for state, meaning in OBSTACLES.items():
            if names := self.trials(state):
                return f"{meaning}: {', '.join(names)}"
        idle = [word for word in ("kept", "rejected") if not any(getattr(f.measured, word) for f in self.findings)]
        return f"no draft was ever {' or '.join(idle)}" if idle else ""

    @property
    def worst(self) -> Finding | None:
        """Return the finding of the largest total variation among those that differ, None if none does."""
        different = (finding for finding in self.findings if finding.state == "different")
        return max(different, key=lambda finding: finding.total_variation, default=None)

    @property
    def faults(self) -> tuple[Fault, ...]:
        """Return every text that came instead of tokens, with the first call that led to it."""
        found: dict[str, Fault] = {}
        for finding in self.findings:
            found = finding.measured.faults | found
        return tuple(found.values())

    @property
    def failed_probes(self) -> tuple[Probed, ...]:
        """Return the boundary probes that failed."""
        return tuple(each for each in self.probes if each.passed is False)

    @property
    def passed(self) -> bool:
        """Tell whether the sampler is lossless and no boundary probe failed."""
        return self.verdict == "LOSSLESS" and not self.failed_probes

    def trials(self, state: str) -> list[str]:
        """Return the names of the trials whose finding is in a state."""
        return [finding.trial.name for finding in self.findings if finding.state == state]

    def __repr__(self) -> str:
        from specnb.laws.auditing.reports import audit_text

        return audit_text(self)

    def _repr_html_(self) -> str:
        from specnb.laws.auditing.reports import audit_html

        return audit_html(self)
