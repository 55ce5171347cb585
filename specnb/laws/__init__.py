"""Exact laws of verification: of one verdict, of one position, and of everything that several steps emit.

Rows are float64, or exact where any entry is a `fractions.Fraction`: then every result is exact too. Rows are
given as one row (the same after every prefix) or as a function from the prefix, a tuple of ids, to its row.
"""

from specnb.laws.conditional import law
from specnb.laws.joint import accepted_law, emitted_law, expected_accepted, joint_law, target_law, total_variation
from specnb.laws.rows import MASS_TOLERANCE
from specnb.laws.scenarios import Scenario

__all__ = [
    "MASS_TOLERANCE",
    "Scenario",
    "accepted_law",
    "emitted_law",
    "expected_accepted",
    "joint_law",
    "law",
    "target_law",
    "total_variation",
]
