"""Proofs by SymPy: every step is a statement that it verifies in every case, so a false one can't be made.

A step says something of one token's p and q, the target's and the draft's probability, or of sums over all tokens.
`losslessness`, `lenient_bias` and `best_acceptance` are proofs of formulas for any vocabulary; `losslessness_by_cases`
and `lenient_bias_by_cases` read a rule of `specnb.rules`, the same function that computes its numbers.
"""

from specnb.proofs.bias import best_acceptance, lenient_bias
from specnb.proofs.by_cases import lenient_bias_by_cases, losslessness_by_cases
from specnb.proofs.general import losslessness
from specnb.proofs.steps import Proof, Step, at_most, equal, summed
from specnb.symbols import Over, p, q

__all__ = [
    "Over",
    "Proof",
    "Step",
    "at_most",
    "best_acceptance",
    "equal",
    "lenient_bias",
    "lenient_bias_by_cases",
    "losslessness",
    "losslessness_by_cases",
    "p",
    "q",
    "summed",
]
