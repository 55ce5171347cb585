"""Exact laws of verification: of one verdict, of one position, and of everything that several steps emit.

Rows are float64, or exact where any entry is a `fractions.Fraction`: then every result is exact too. Rows are
given as one row (the same after every prefix) or as a function from the prefix, a tuple of ids, to its row.
"""

from specnb.laws.auditing import audit
from specnb.laws.auditing.findings import Audit
from specnb.laws.auditing.midpoints import sampler_law
from specnb.laws.auditing.trials import TRIALS, Trial
from specnb.laws.certificates import Certificate
from specnb.laws.certifying import certify
from specnb.laws.conditional import law
from specnb.laws.falsifying import Counterexample, falsify
from specnb.laws.implementation import ImplementedLaw, implemented_law
from specnb.laws.joint import accepted_law, emitted_law, expected_accepted, joint_law, target_law, total_variation
from specnb.laws.optimum import best_expected_accepted
from specnb.laws.rows import MASS_TOLERANCE
from specnb.laws.scenarios import Scenario

__all__ = [
    "MASS_TOLERANCE",
    "TRIALS",
    "Audit",
    "Certificate",
    "Counterexample",
    "ImplementedLaw",
    "Scenario",
    "Trial",
    "accepted_law",
    "audit",
    "best_expected_accepted",
    "certify",
    "emitted_law",
    "expected_accepted",
    "falsify",
    "implemented_law",
    "joint_law",
    "law",
    "sampler_law",
    "target_law",
    "total_variation",
]
