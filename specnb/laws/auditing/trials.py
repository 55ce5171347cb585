"""The rows on which an audit tries a sampler: small, exact, and each there for a fault that it shows."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import NamedTuple

from specnb.laws.rows import Rows


class Trial(NamedTuple):
    """Rows p and q of Fractions (or functions from a prefix to one), gamma drafts per step, and how many steps."""

    name: str
    p: Rows
    q: Rows
    gamma: int
    steps: int = 1


def row(*counts: int) -> list[Fraction]:
    """Return counts over their sum.

    >>> row(1, 3)
    [Fraction(1, 4), Fraction(3, 4)]
    """
    return [Fraction(count, sum(counts)) for count in counts]


def contextual(vocabulary: int, seed: int) -> Callable[[tuple[int, ...]], list[Fraction]]:
    """Return rows of their own after every prefix, of counts 0 … 4 that a residue modulo 101 scatters."""

    def after(prefix: tuple[int, ...]) -> list[Fraction]:
        place = seed
        for token in prefix:
            place = (31 * place + token + 7) % 101
        counts = [place * (v + 3) % 101 % 5 for v in range(vocabulary)]
        return row(*counts) if any(counts) else row(*[1] * vocabulary)

    return after


SEP = row(3, 5, 4), row(2, 9, 1)
TOY = row(1, 2), row(2, 1)

TRIALS = (
    Trial("bonus alone", *SEP, gamma=0),
    Trial("one draft", *SEP, gamma=1),
    Trial("two drafts", *SEP, gamma=2),
    Trial("three drafts", *TOY, gamma=3),
    Trial("two steps", *TOY, gamma=1, steps=2),
    Trial("rows of their own", contextual(3, 11), contextual(3, 23), gamma=2),
    Trial("rows of their own, two steps", contextual(2, 7), contextual(2, 18), gamma=1, steps=2),
    Trial("rows with zeros", row(1, 1, 2), row(0, 3, 1), gamma=2),
    Trial("disjoint supports", row(1, 1, 0, 0), row(0, 0, 1, 1), gamma=1),
    Trial("identical rows", row(1, 2, 1), row(1, 2, 1), gamma=1),
    Trial("one-hot draft", row(3, 5, 4), row(0, 1, 0), gamma=1),
    Trial("one-hot target", row(0, 1, 0), row(2, 9, 1), gamma=1),
    Trial("rare tokens", row(1, 3, 12, 368, 2000, 6000, 2, 7998), row(2, 1, 8, 1000, 4000, 5000, 0, 6373), gamma=1),
    Trial("small residual", row(2**19 + 1, 2**19 - 1, 0), row(1, 1, 0), gamma=1),
)
