"""Why one γ is the best, and where it is: proved by SymPy for all 0 < α < 1, c > 0 and v > 0."""

from __future__ import annotations

from typing import Any

import sympy
from sympy import Symbol, exp

from specnb.errors import SpecnbError
from specnb.proofs.steps import Proof, Step
from specnb.symbols import latex
from specnb.theory.algebra import COST, GEOMETRIC, alpha, c, gamma, v

L, t, u, c_positive = sympy.symbols("L t u c", positive=True)
x, log_u = Symbol("x", nonnegative=True), Symbol(r"\ln u")
D = alpha ** (gamma + 1) * COST - c * GEOMETRIC
N = L * exp(-L * (x + 1)) * (v + c * x) - c * (1 - exp(-L * (x + 1)))


def best_gamma_proof() -> Proof:
    """Return the proof that the speedup rises to one best γ and then falls, and that γ is next to a closed form."""
    return Proof("The best γ", (_unimodal(), _closed_form()))


def _unimodal() -> Proof:
    S, after = GEOMETRIC / COST, {gamma: gamma + 1}
    falls = (1 - alpha) * alpha ** (gamma + 1) * COST.subs(after)
    steps = (
        _equal("What one more draft adds to the speedup $S_\\gamma = E_\\gamma/(v + \\gamma c)$ has the sign of its "
               "numerator, $D_\\gamma$.",
               S.subs(after) - S, D / (COST * COST.subs(after)), "S_{\\gamma+1} - S_\\gamma"),
        _equal("From one γ to the next $D$ changes by", D.subs(after) - D, -falls, "D_{\\gamma+1} - D_\\gamma"),
        _positive("That is negative, because this is positive. So once $D_\\gamma \\le 0$ it stays so: the speedup "
                  "rises, then falls, and the least γ with $D_\\gamma \\le 0$ is the best.", falls),
        _equal("The first draft is worth it if $\\alpha v > c$.", D.subs(gamma, 0), alpha * v - c, "D_0"),
        _limit("Such a γ exists: $D$ ends below 0 for $c > 0$. (For $c = 0$ it never does: no γ is best.)"),
    )  # fmt: skip
    return Proof("the speedup rises up to one best γ and falls beyond it", steps)


def _closed_form() -> Proof:
    S = (1 - exp(-L * (x + 1))) / ((1 - exp(-L)) * (v + c * x))
    at_u = N.subs(x, (u - 1) / L - v / c).subs(c, c_positive)
    steps = (
        _equal("For real $x \\ge 0$ in the place of γ, and $\\alpha = e^{-L}$, the derivative of the speedup has the "
               "sign of its numerator, $N(x)$.",
               sympy.diff(S, x), N / ((1 - exp(-L)) * (v + c * x) ** 2), "S'(x)"),
        _equal("$N$ changes by", sympy.diff(N, x), -L**2 * exp(-L * (x + 1)) * (v + c * x), "N'(x)"),
        _positive("and so falls, because this is positive. So $S$ rises up to the root γ° of $N$ and falls beyond it, "
                  "and the best integer is the floor or the ceiling of γ° (0 if γ° < 0).",
                  L**2 * exp(-L * (x + 1)) * (v + c * x)),
        _equal("With $x = (u - 1)/L - v/c$ that root solves $u e^{-u} = e^{-1 - L(v - c)/c}$.",
               at_u, c_positive * (u * exp(-u) * exp(1 + L * (v - c_positive) / c_positive) - 1), "N"),
        _positive("There $u - 1 = L(x + v/c)$ is positive, so $-u < -1$ is Lambert's $W_{-1}(-e^{-1 - L(v - c)/c})$: "
                  "the closed form.", L * (x + v / c)),
        _equal("The logarithm of that equation, $\\ln u = u - 1 - L(v - c)/c$, makes it shorter.",
               ((u - 1) / L - v / c).subs(u, 1 + L * (v - c) / c + log_u), log_u / L - 1,
               r"\gamma^\circ = (u - 1)/L - v/c"),
    )  # fmt: skip
    return Proof("it is next to a closed form", steps)


def _equal(claim: str, lhs: Any, rhs: Any, name: str) -> Step:
    """Return the verified step lhs = rhs, or raise; name: the left side as it is shown."""
    numerator, _ = sympy.fraction(sympy.together(lhs - rhs))
    difference = sympy.simplify(sympy.expand(sympy.expand_power_exp(numerator)))
    if difference != 0:
        raise SpecnbError(f"{claim!r} is false: the sides differ by a fraction with the numerator {difference}")
    return Step(claim, f"{name} = {latex(rhs)}", unlisted=1)


def _positive(claim: str, expression: Any) -> Step:
    """Return the verified step expression > 0, for 0 < α < 1 in the form 1/(1 + t), c > 0 and v > 0; or raise."""
    inside = sympy.factor(expression.subs({alpha: 1 / (1 + t), c: c_positive}))
    if not inside.is_positive:
        raise SpecnbError(f"{claim!r} isn't known: the sign of {inside}")
    return Step(claim, f"{latex(expression)} > 0", unlisted=1)


def _limit(claim: str) -> Step:
    """Return the verified step that D tends to −c/(1 − α), or raise."""
    rate = Symbol("L", positive=True)
    end = sympy.limit(D.subs({alpha: exp(-rate), gamma: x}).subs(c, c_positive), x, sympy.oo)
    if sympy.simplify(end + c_positive / (1 - exp(-rate))) != 0:
        raise SpecnbError(f"{claim!r} is false: the limit is {end}")
    return Step(claim, rf"\lim_{{\gamma \to \infty}} D_\gamma = {latex(-c / (1 - alpha))} < 0", unlisted=1)
