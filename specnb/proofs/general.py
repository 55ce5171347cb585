"""Losslessness for any vocabulary: what is true of one token's p and q, summed over all."""

from __future__ import annotations

from sympy import Abs, Max, Min, Piecewise, Symbol, symbols

from specnb.errors import SpecnbError
from specnb.proofs.cases import certain_cases, mass_cases, match_cases, scaled_cases, up_to_one
from specnb.proofs.steps import Proof, at_most, equal, summed
from specnb.symbols import Over, p, q

rejected, residual_mass = symbols("R M", positive=True)
correction = Symbol("r_v", nonnegative=True)
p_w = Symbol("p_w", nonnegative=True)


def losslessness(rule: str = "token") -> Proof:
    """Return the proof that a rule emits p, for any vocabulary: `token` and `match`, or `block` for any γ.

    These are proofs of formulas; `losslessness_by_cases` reads a rule's own law. Sources: Leviathan et al. 2023,
    appendix A.1 (token); Sun et al. 2024, arXiv:2403.10444 (block).

    >>> losslessness("match")
    Proof('The match rule emits p': 6 steps verified in 28 cases)
    """
    if not isinstance(rule, str) or rule not in PROVED:
        raise SpecnbError(f"there is no proof for any vocabulary of rule {rule!r}, only of {', '.join(PROVED)}")
    return PROVED[rule]()


def _token() -> Proof:
    ratio = Piecewise((p / q, q > 0), (0, True))
    kept, lacking, excess = Min(p, q), Max(p - q, 0), Max(q - p, 0)
    steps = (
        equal("A draft $v$ is kept with probability $\\min(1, p_v/q_v)$. What is kept of $q_v$ is what it "
              "shares with $p_v$.", q * Min(1, ratio), kept),
        equal("What is rejected of $q_v$ is its excess over $p_v$.", q - kept, excess),
        equal("What the kept part lacks of $p_v$ is the residual. This identity carries everything.",
              kept + lacking, p),
        equal("A token that the draft never proposes, $q_v = 0 < p_v$, comes from the residual alone.",
              lacking, p, given=(q,)),
        summed("What is rejected in all, $R$ on the left, is what is lacking in all, $M$ on the right.",
               Over(excess), Over(lacking)),
        summed("The acceptance $\\alpha$, on the left, is one minus the total variation of $p$ and $q$.",
               Over(kept), 1 - Over(Abs(p - q)) / 2),
        equal("If anything is rejected, corrections drawn from the residual over its mass $M$ restore $p$, "
              "since $R = M$ by step 5.",
              kept + rejected * lacking / residual_mass, p, where={rejected: residual_mass}),
        equal("If nothing is rejected, $R = M = 0$ and no term of either sum is positive, so $p = q$: the "
              "kept part is all of $p$, whatever the correction $r_v$ would be. No special case is needed.",
              kept + rejected * correction, p, given=(lacking, excess), where={rejected: 0}),
    )  # fmt: skip
    return Proof("The token rule emits p", steps)


def _match() -> Proof:
    p_x, drafted = symbols(r"p_x \delta_{vx}", nonnegative=True)
    by = match_cases(p_x, drafted)
    lacking = Max(p - drafted, 0)
    corrected = Piecewise((lacking / (1 - p_x), p_x < 1), (correction, True))
    steps = (
        equal("A draft $x$ is judged by the token rule as if it had been certain, by a row that is 1 at $x$ and 0 "
              "elsewhere: $\\delta_{vx}$. It is kept with probability $p_x$.", Min(1, p_x), p_x, by=by),
        equal("The residual is $p$ without the draft.", lacking, (1 - drafted) * p, by=by),
        summed("Its mass is what is rejected, since $\\sum_v \\delta_{vx}\\,p_v = p_x$.",
               Over(lacking), 1 - p_x, by=by, nothing=(drafted - p_x) * p),
        equal("So $v$ is emitted with probability $p_v$, whatever the draft. If $p_x = 1$, nothing is ever rejected "
              "and the correction $r_v$ doesn't matter.", drafted * p_x + (1 - p_x) * corrected, p, by=by),
        summed("Then it is so for any law $q$ of the draft, here $v$, and any token emitted, here $w$.",
               Over(q * p_w), p_w),
        summed("The acceptance is the probability that a draw from $p$ and one from $q$ agree.",
               Over(q * Min(1, p)), Over(p * q), by=certain_cases()),
    )  # fmt: skip
    return Proof("The match rule emits p", steps)


def _block() -> Proof:
    a, S, H = symbols("a S H", nonnegative=True)
    ratio = Piecewise((p / q, q > 0), (0, True))
    kept, lacking, by = Min(a * p, q), Max(a * p - q, 0), scaled_cases(a)
    steps = (
        _rescue(),
        equal("Given such a prefix, the next token is $v$ if $v$ is drafted and kept, or if the prefix is rescued, "
              "with probability $H = S$, and $v$ is the correction. That has probability $a\\,p_v$: the next token has "
              "the law $p$, whatever was drafted before it.",
              q * Min(1, a * ratio) + H * lacking / S, a * p, by=by, where={H: S}),
        equal("If $H = S = 0$, no term of $S$ is positive, and the correction $r_v$ is never drawn.",
              kept + H * correction, a * p, by=by, given=(lacking,), where={H: 0}),
        at_most("Where the rule `token` multiplies the chance of a longer prefix by $\\min(1, p_v/q_v)$, $a$ falls at "
                "most so far. So `block` accepts at least as many drafts in expectation.",
                a * Min(p, q), Min(a * p, q), by=up_to_one(a)),
    )  # fmt: skip
    return Proof("The block rule emits p", steps)


def _rescue() -> Proof:
    a, S, R = symbols("a S R", nonnegative=True)
    ratio = Piecewise((p / q, q > 0), (0, True))
    kept, lacking, by = Min(a * p, q), Max(a * p - q, 0), scaled_cases(a)
    steps = (
        equal("Say it is true of one draft more: $v$ after this prefix is kept with probability "
              "$\\min(1, a\\,p_v/q_v)$, the next $a$. (With all $\\gamma$ drafts that is the last test itself.) "
              "Of $q_v$ that is what it shares with $a\\,p_v$.", q * Min(1, a * ratio), kept, by=by),
        summed("Else all later tests fail, in all with probability $R$, on the left. With "
               "$S = \\sum_v (a\\,p_v - q_v)_+$ that is $S + 1 - a$.",
               1 - Over(kept), Over(lacking) + 1 - a, by=by),
        equal("Then the prefix's own test rescues it with probability $S/R$, or 1 for 0/0: in all $H$, on the left, "
              "which is $S$.", R * Piecewise((S / R, R > 0), (1, True)), S, by=mass_cases(S, R)),
        summed("Kept with a longer prefix or rescued, together: $a$.", Over(kept) + Over(lacking), a, by=by),
    )  # fmt: skip
    return Proof("a prefix whose tests have come to $a$ is kept with probability $a$", steps)


PROVED = {"token": _token, "match": _match, "block": _block}
