"""The algebra of speed: tokens per step, speedup, the best γ, what breaks even, and how long a generation takes.

One definition each, in SymPy, takes numbers, NumPy arrays that broadcast, and SymPy expressions or `Fraction`s, for
which the result is exact. Costs are in units of a plain target step.
"""

from specnb.theory.algebra import alpha, c, gamma, v
from specnb.theory.best_gamma import best_gamma_proof
from specnb.theory.latency import latency_percentiles, steps_law
from specnb.theory.optimum import optimal_gamma, stationary_gamma
from specnb.theory.speeds import Sensitivity, break_even, operations_factor, sensitivity, speedup
from specnb.theory.tokens import expected_tokens, token_law, token_variance

__all__ = [
    "Sensitivity",
    "alpha",
    "best_gamma_proof",
    "break_even",
    "c",
    "expected_tokens",
    "gamma",
    "latency_percentiles",
    "operations_factor",
    "optimal_gamma",
    "sensitivity",
    "speedup",
    "stationary_gamma",
    "steps_law",
    "token_law",
    "token_variance",
    "v",
]
