"""How many drafts a request's next round makes, from what became of its own drafts before."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from specnb.errors import SpecnbError
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
        whole = all(isinstance(n, int) and not isinstance(n, bool) for n in (self.least, self.largest))
        if not (whole and 0 <= self.least <= self.largest and self.largest >= 1):
            raise SpecnbError(
                f"least is {self.least!r} and largest {self.largest!r}; expected integers with 0 <= least <= largest"
                " and largest >= 1"
            )
        if not (self.c > 0 and self.v > 0 and 0 < self.expected < 1 and self.prior > 0):
            raise SpecnbError(
                f"c, v, expected and prior are {self.c}, {self.v}, {self.expected} and {self.prior}; expected "
                "positive numbers, and expected below 1"
            )

    def __call__(self, accepted: int, judged: int) -> int:
        """Return γ for the next round of a request of whose drafts so many were judged and accepted."""
        return _best(self, int(accepted), int(judged))


@functools.lru_cache(maxsize=2**16)
def _best(gamma: AdaptiveGamma, accepted: int, judged: int) -> int:
    alpha = (accepted + gamma.prior * gamma.expected) / (judged + gamma.prior)
    return max(gamma.least, optimal_gamma(alpha, gamma.c, gamma.v, max_gamma=gamma.largest))
