"""The volume on which a decision takes each value, by one cell of its uniforms at a time."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

import numpy as np

RESOLUTION = Fraction(1, 2**30)
"""How far apart two changes must be to be told apart: far above float64's rounding, far below a real fault."""

MOST_CHANGES = 32
"""Changes that are looked for beyond the given cuts: more than twice what an inverse distribution function of
four tokens has at each of three positions. A decision that isn't constant on boxes would have no end of them."""

SPOTS = 64
"""Points tried all over the cube, besides those of each cell: of sets of 8 % of its volume, 1 in 200 is missed."""

Point = tuple[float, ...]
Decide = Callable[[list[Point]], Sequence[Hashable]]
"""A function of points in the unit cube; it returns what is decided at each."""

Volumes = dict[Hashable, Fraction]

_ZERO, _ONE = Fraction(0), Fraction(1)


class Side(NamedTuple):
    """One side of a box: an interval, and the places to try: near its low end, in its middle, near its high end."""

    low: Fraction
    high: Fraction
    tries: tuple[float, float, float]


Box = tuple[Side, ...]


def volumes(decide: Decide, cuts: Sequence[Iterable[Fraction]], resolution: Fraction = RESOLUTION) -> Volumes:
    """Return the exact volume of the unit cube on which `decide` takes each value; under None what is undecided.

    cuts: for each axis where the decision is expected to change. Every cell between them is tried in its middle and
    near all its corners, one of which lies in any half-space that meets the cell, and wherever one of `SPOTS`
    random points lies in it; what lies between all of these stays unseen. Where they differ, bisection finds the
    change, which is taken to lie, within `resolution`, where any axis has a cut, or as far from 1, or else at the
    simplest fraction; all cells are cut there. What isn't constant after `MOST_CHANGES` such cuts is undecided.

    >>> volumes(lambda points: [u < 0.1 for u, in points], [[Fraction(1, 2)]])[True]
    Fraction(1, 10)
    """
    total: Volumes = defaultdict(Fraction)
    spots = [tuple(point) for point in np.random.default_rng(0).random((SPOTS, len(cuts))).tolist()]
    seen = dict(zip(spots, decide(spots), strict=True))
    search = _Search(decide, resolution, {place for cut in cuts for at in cut for place in (at, 1 - at)}, seen)
    sides = [[_side(*ends, resolution) for ends in itertools.pairwise(sorted({_ZERO, _ONE, *cut}))] for cut in cuts]
    boxes = list(itertools.product(*sides))
    for _ in range(MOST_CHANGES):
        boxes = _settle(search, boxes, total)
        change = search.first_change(boxes[0]) if boxes else None
        if change is None:
            break
        boxes = [part for box in boxes for part in _cut(box, *change, resolution)]
    if boxes:
        total[None] = sum(map(_volume, boxes), Fraction())
    return dict(total)


def simplest(low: Fraction, high: Fraction) -> Fraction:
    """Return the fraction of least denominator in the closed interval of two numbers >= 0.

    >>> simplest(Fraction(333, 1000), Fraction(334, 1000))
    Fraction(1, 3)
    """
    whole = -(-low // 1)
    if whole <= high:
        return Fraction(whole)
    below = whole - 1
    return below + 1 / simplest(1 / (high - below), 1 / (low - below))


def _settle(search: _Search, boxes: list[Box], total: Volumes) -> list[Box]:
    """Add the volumes of the boxes on which the decision is constant to the total; return the others."""
    points = [_tries(box) for box in boxes]
    decided = iter(search.decide(list(itertools.chain(*points))))
    changing = []
    for box, tried in zip(boxes, points, strict=True):
        middle, *corners = itertools.islice(decided, len(tried))
        if all(value == middle for value in (*corners, *search.spots_in(box).values())):
            total[middle] += _volume(box)
        else:
            changing.append(box)
    return changing


@dataclass(frozen=True)
class _Search:
    """The search for where a decision changes: how closely, and the places where it probably does."""

    decide: Decide
    resolution: Fraction
    known: set[Fraction]
    spots: dict[Point, Hashable]

    def spots_in(self, box: Box) -> dict[Point, Hashable]:
        """Return the spots well inside a box, with what is decided there."""
        return {
            spot: value
            for spot, value in self.spots.items()
            if all(side.tries[0] < at < side.tries[2] for at, side in zip(spot, box, strict=True))
        }

    def first_change(self, box: Box) -> tuple[int, Fraction] | None:
        """Return an axis and the place on it where the decision changes; None if it is no function of the point."""
        here, *corners = _tries(box)
        value, *values = self.decide([here, *corners])
        elsewhere = dict(zip(corners, values, strict=True)) | self.spots_in(box)
        end = next((point for point, other in elsewhere.items() if other != value), here)
        for axis, side in enumerate(box):
            there = _moved(here, axis, end[axis])
            if self.decide([there])[0] != value:
                return axis, self.place(here, axis, end[axis], value, side)
            here = there
        return None

    def place(self, here: Point, axis: int, there: float, value: Hashable, side: Side) -> Fraction:
        """Return where along an axis the decision changes between a point of that value and another one."""
        same, other = here[axis], there
        while abs(other - same) > self.resolution / 4:
            middle = (same + other) / 2
            if self.decide([_moved(here, axis, middle)])[0] == value:
                same = middle
            else:
                other = middle
        low = max(Fraction(side.tries[0]), Fraction(min(same, other)) - self.resolution / 4)
        high = min(Fraction(side.tries[2]), Fraction(max(same, other)) + self.resolution / 4)
        known = [place for place in self.known if low <= place <= high]
        return min(known) if known else simplest(low, high)


def _moved(point: Point, axis: int, to: float) -> Point:
    return (*point[:axis], to, *point[axis + 1 :])


def _side(low: Fraction, high: Fraction, resolution: Fraction) -> Side:
    inset = min(resolution, (high - low) / 4)
    return Side(low, high, (float(low + inset), float((low + high) / 2), float(high - inset)))


def _tries(box: Box) -> list[Point]:
    """Return the middle of a box and points near all its corners."""
    middle = tuple(side.tries[1] for side in box)
    return [middle, *itertools.product(*(side.tries[::2] for side in box))]


def _cut(box: Box, axis: int, at: Fraction, resolution: Fraction) -> list[Box]:
    """Return the two parts of a box on both sides of a place on an axis, or the box if it doesn't reach there."""
    low, high, _ = box[axis]
    if not low < at < high:
        return [box]
    parts = (_side(low, at, resolution), _side(at, high, resolution))
    return [(*box[:axis], part, *box[axis + 1 :]) for part in parts]


def _volume(box: Box) -> Fraction:
    return math.prod((side.high - side.low for side in box), start=_ONE)
