"""The algebra of speed in SymPy: each formula once. Numbers and arrays are read from the same expressions.

α is the acceptance of a draft, the same and independent at every position; γ drafts per step; c and v are the costs
of one draft step and of one verification pass, in units of a plain target step.
"""

from __future__ import annotations

from sympy import Eq, LambertW, Piecewise, Symbol, diff, exp, log, oo, powsimp, symbols
from sympy.codegen.cfunctions import expm1

alpha, c = symbols("alpha c", nonnegative=True)
v = Symbol("v", positive=True)
gamma = Symbol("gamma", integer=True, nonnegative=True)
tokens = Symbol("E", positive=True)
c_hat = Symbol(r"\hat{c}", nonnegative=True)
draft = Symbol("i", integer=True, positive=True)

GEOMETRIC = (1 - alpha ** (gamma + 1)) / (1 - alpha)
"""1 + α + … + α^γ for α < 1 (Leviathan et al. 2023, equation 1)."""

TOKENS = Piecewise((gamma + 1, Eq(alpha, 1)), (GEOMETRIC, True))
"""E, the expected tokens per step."""

TOKENS_IN_FLOATS = Piecewise(
    (gamma + 1, Eq(alpha, 1)), (1, Eq(alpha, 0)), (1 + alpha * expm1(gamma * log(alpha)) / (alpha - 1), True)
)
"""E written so that no digits cancel as α → 1, and that it is exactly 1 for γ = 0."""

TOKENS_WITHOUT_END = Piecewise((oo, Eq(alpha, 1)), (1 / (1 - alpha), True))
"""The limit of E as γ → ∞."""

VARIANCE = Piecewise(
    (0, Eq(alpha, 1)),
    (
        (alpha - (2 * gamma + 1) * alpha ** (gamma + 1) * (1 - alpha) - alpha ** (2 * gamma + 2)) / (1 - alpha) ** 2,
        True,
    ),
)
"""The variance of the tokens per step."""

COST = v + gamma * c
SPEEDUP = tokens / COST
"""Tokens per unit of time over plain decoding's, which is 1: γc is in the denominator (Leviathan, theorem 3.8)."""

OPERATIONS = (gamma * c_hat + gamma + 1) / tokens
"""Arithmetic operations per token over plain decoding's (Leviathan, theorem 3.11)."""

KEPT = alpha**draft
"""The probability that draft i is accepted; 1 + Σ KEPT is E."""

KEPT_SLOPE = powsimp(diff(KEPT, alpha))
"""Its derivative by α, i α^(i−1)."""

SLOPE = Piecewise((gamma * (gamma + 1) / 2, Eq(alpha, 1)), (powsimp(diff(GEOMETRIC, alpha)), True))
"""∂E/∂α, whose value at α = 1 is 1 + 2 + … + γ."""

RULE = (1 - alpha) * alpha ** (gamma + 1) * COST - c * (1 - alpha ** (gamma + 1))
"""Of the sign of speedup(γ + 1) − speedup(γ): see `best_gamma_proof`. At α < 1 the best γ is the least with <= 0."""

RATE = -log(alpha)
STATIONARY = (-LambertW(-exp(-1 - RATE * (v - c) / c), -1) - 1) / RATE - v / c
"""The real γ at which the derivative of the speedup is 0."""
