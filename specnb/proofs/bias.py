"""What leniency costs: the bias of `lenient(l)` for any vocabulary and any l, and what no rule can beat."""

from __future__ import annotations

from typing import Any

from sympy import Abs, Max, Min, Piecewise, Symbol, symbols

from specnb.errors import SpecnbError
from specnb.proofs.cases import factor_cases, lenient_cases, ordered_cases
from specnb.proofs.steps import Proof, Step, at_most, equal, summed
from specnb.symbols import Over, alpha, leniency, p, q

rejected, residual_mass = symbols("R M", positive=True)
kept = Min(q, p / leniency)
excess = Max(q - p / leniency, 0)


def lenient_bias(residual: str = "p - q") -> Proof:
    """Return the proof of how `lenient(l)`, 0 < l < 1, errs with this residual, for any vocabulary.

    residual: "p - q" or "p - lq". α is the acceptance and ε the total variation of the emitted law from p. With the
    first α = 1 − TV(p, q) + ε for every l, which `best_acceptance` shows to be the most.
    """
    return RESIDUALS[required_residual(residual)]()


def best_acceptance() -> Proof:
    """Return the proof that a rule whose emitted law has total variation ε from p accepts at most 1 − TV(p, q) + ε."""
    e = Symbol("e_v", nonnegative=True)
    steps = (
        at_most("What is kept of $v$ was drafted and is emitted, so it is at most $\\min(q_v, e_v)$, where $e$ is the "
                "emitted law.", Min(q, e), Min(p, q) + Max(e - p, 0), by=ordered_cases(e)),
        summed("Then $\\alpha$ is at most the sum of the right side. The part $\\min(p_v, q_v)$ comes to "
               "$1 - \\mathrm{TV}(p, q)$.", Over(Min(p, q)), 1 - Over(Abs(p - q)) / 2),
        summed("The part $(e_v - p_v)_+$ comes to $\\varepsilon = \\mathrm{TV}(e, p)$, as it does for any two laws, "
               "here $p$ and $q$.", Over(Max(p - q, 0)), Over(Abs(p - q)) / 2),
    )  # fmt: skip
    return Proof("No rule accepts more than 1 − TV(p, q) + ε", steps)


def required_residual(residual: Any) -> str:
    """Return a residual of `lenient`, or raise."""
    if residual not in RESIDUALS:
        raise SpecnbError(f"residual is {residual!r}; expected one of {', '.join(RESIDUALS)}")
    return residual


def _token_residual() -> Proof:
    by, lacking, too_many = lenient_cases("v", leniency), Max(p - q, 0), Max(kept - p, 0)
    steps = (
        *_acceptance(),
        at_most("That is no more than the rule `token` rejects, which is the residual's mass: $R \\le M$.",
                excess, Max(q - p, 0), by=by),
        equal("So the emitted law has too much where $q_v > p_v$, and too little, all by one factor, where "
              "$p_v > q_v$. The two parts are never both positive.",
              kept + rejected * lacking / residual_mass - p,
              too_many - (1 - rejected / residual_mass) * lacking, by=by),
        summed("The first sums to $M - R$, as the second does. That is $\\varepsilon$.",
               Over(too_many), Over(lacking) - Over(excess), by=by),
        summed("So for every $l$, what is accepted more than by the rule `token` is $\\varepsilon$: "
               "$\\alpha = 1 - \\mathrm{TV}(p, q) + \\varepsilon$.",
               Over(kept), 1 - Over(Abs(p - q)) / 2 + Over(too_many), by=by),
        equal("If $M = 0$, then $p = q$: all is kept, and it is $p$.", kept, p, by=by, given=(p - q,)),
    )  # fmt: skip
    return Proof("Lenient with the residual (p − q)+: the bias", steps)


def _lenient_residual() -> Proof:
    by, lacking = lenient_cases("v", leniency), Max(p - leniency * q, 0)
    x, factor = Symbol("x", real=True), (1 - leniency) / (1 - leniency * alpha)
    steps = (
        *_acceptance(),
        summed("The residual's mass is $M = 1 - l \\alpha > 0$.", Over(lacking), 1 - leniency * Over(kept), by=by),
        equal("So the emitted law errs as the kept tokens do, by one factor.",
              kept + rejected * lacking / residual_mass - p, factor * (kept - alpha * p), by=by,
              where={rejected: 1 - alpha, residual_mass: 1 - leniency * alpha}),
        equal("Then $\\varepsilon$, half the sum of absolute values, has that factor too: with "
              "$x = \\min(q_v, p_v/l) - \\alpha\\,p_v$",
              Abs(factor * x), factor * Abs(x), by=factor_cases(leniency, alpha, x)),
    )  # fmt: skip
    return Proof("Lenient with the residual (p − l q)+: the bias", steps)


def _acceptance() -> tuple[Step, Step]:
    ratio, by = Piecewise((p / (leniency * q), q > 0), (0, True)), lenient_cases("v", leniency)
    return (
        equal("A draft $v$ is kept with probability $\\min(1, p_v/(l\\,q_v))$.", q * Min(1, ratio), kept, by=by),
        summed("In all that is $\\alpha$. The rest, $R$ on the right, is rejected.",
               1 - Over(kept), Over(excess), by=by),
    )  # fmt: skip


RESIDUALS = {"p - q": _token_residual, "p - lq": _lenient_residual}
