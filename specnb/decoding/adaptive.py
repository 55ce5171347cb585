"""How many drafts a request's next round makes, from what became of its own drafts before."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

from specnb.decoding.arguments import check_count, check_number
from specnb.theory import optimal_gamma


@dataclass(frozen=True)
class AdaptiveGamma:
    """The γ that the speed algebra calls best for a request's own acceptance so far.

    It is a pure function of the request's own history and of c and v, given as numbers: tokens depend on no clock
    and on no neighbour, and the same seed gives the same text. The acceptance α is estimated by its mean under a
    Beta prior: (accepted + prior·α₀)/(judged + prior).

    largest: the most drafts in a round, >= 1. least: the fewest, >= 0; 0 may end drafting for good.
    c, v: cost of one draft step and of one verification pass, in plain steps of the target.
    expected, prior: α₀ in (0, 1) and how many judged drafts it weighs as much as, > 0.

    Source: the γ of Leviathan et al. 2023, section 3.5, with α estimated for each request.

    >>> gamma = AdaptiveGamma(largest=8, c=0.1)
    >>> gamma(accepted=0, judged=0), gamma(accepted=40, judged=42), gamma(accepted=1, judged=20)
    (4, 8, 1)
    """

    largest: int = 8
    least: int = 1
    c: float = 0.1
    v: float = 1.0
    expected: float = 0.7
    prior: float = 4.0

    def __post_init__(self) -> None:
        largest = check_count("largest", self.largest, least=1)
        checked: dict[str, float] = {"largest": largest, "least": check_count("least", self.least, most=largest)}
        for name in ("c", "v", "expected", "prior"):
            high = 1 if name == "expected" else math.inf
            checked[name] = check_number(name, getattr(self, name), 0, high)
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    def __call__(self, accepted: int, judged: int) -> int:
        """Return γ for the next round of a request of whose drafts so many were judged and accepted."""
        return _best(self, check_count("accepted", accepted), check_count("judged", judged, least=accepted))


@functools.lru_cache(maxsize=2**16)
def _best(gamma: AdaptiveGamma, accepted: int, judged: int) -> int:
    alpha = (accepted + gamma.prior * gamma.expected) / (judged + gamma.prior)
    return max(gamma.least, optimal_gamma(alpha, gamma.c, gamma.v, max_gamma=gamma.largest))
