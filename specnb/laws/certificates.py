"""What `certify` found, as data that shows itself: as text, HTML or LaTeX, the same on every machine."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from html import escape
from typing import Any

from specnb.laws.comparing import TOLERANCE

NUDGE = 1e-9
"""Added before rounding to four digits, so that the last bit of a sum decides no tie."""

COLOURS = {
    "LOSSLESS": "color: #00372a; background-color: #b5e3d0",
    "NOT LOSSLESS": "color: #7f2704; background-color: #fdd9c4",
    "INCONCLUSIVE": "color: #3d2c00; background-color: #ffe9a8",
}
"""How HTML shows a verdict: each background brings its own text colour, for light and for dark notebooks."""


@dataclass(frozen=True)
class Coverage:
    """What the examples of one kind and size showed.

    distance: the largest total variation of the joint law from the promised one, a Fraction if exact. accepted, best:
    the expected accepted drafts of a step and the most that a lossless rule has (`best_expected_accepted`), on
    average over the examples; shortfall: the largest difference of the two, below 0 where a lossy rule has more.
    """

    kind: str
    vocabulary: int
    gamma: int
    steps: int
    examples: int
    exact: bool
    distance: Any
    accepted: float
    best: float
    shortfall: float

    @property
    def differs(self) -> bool:
        """Tell whether the laws differ: at all if exact, else by more than `TOLERANCE`."""
        return bool(self.distance > (0 if self.exact else TOLERANCE))

    @property
    def judges(self) -> bool:
        """Tell whether there were drafts that could have been judged wrongly."""
        return self.gamma > 0 and self.vocabulary > 1


@dataclass(frozen=True)
class Example:
    """An example whose joint law isn't what was promised, and the tokens whose probability is most wrong.

    p, q: its rows by prefix, so that `joint_law` takes `example.p.__getitem__`.
    """

    kind: str
    vocabulary: int
    gamma: int
    steps: int
    index: int
    p: dict[tuple[int, ...], list] = field(repr=False)
    q: dict[tuple[int, ...], list] = field(repr=False)
    distance: Any
    tokens: tuple[int, ...]
    emitted: Any
    promised: Any

    def __str__(self) -> str:
        """Name the example and where it is most wrong."""
        return (
            f"{self.kind} rows {self.index}, V = {self.vocabulary}, gamma = {self.gamma}, steps = {self.steps}: "
            f"total variation {_shown(self.distance)}; the tokens {', '.join(map(str, self.tokens))} have probability "
            f"{_shown(self.emitted)} in place of {_shown(self.promised)}"
        )


@dataclass(frozen=True, repr=False)
class Certificate:
    """Whether a rule was lossless on the examples it was tried on; it is true only if it was.

    obstacle: why nothing could be compared, if so. tolerance: the total variation that counts as equal in float64,
    where lossless rules show that of rounding; in Fractions it is 0.
    """

    label: str
    seed: int
    coverage: tuple[Coverage, ...]
    worst: Example | None = None
    obstacle: str = ""
    tolerance: float = TOLERANCE

    @property
    def verdict(self) -> str:
        """Return LOSSLESS, NOT LOSSLESS or INCONCLUSIVE."""
        if self.worst is not None:
            return "NOT LOSSLESS"
        return "INCONCLUSIVE" if self.reason else "LOSSLESS"

    @property
    def reason(self) -> str:
        """Return why nothing was verified, or nothing."""
        if self.obstacle or not self.coverage:
            return self.obstacle or "there was no example"
        return "" if any(each.judges for each in self.coverage) else "there was no draft to judge"

    @property
    def distance(self) -> Any:
        """Return the largest total variation that was found, 0 without examples."""
        return max((each.distance for each in self.coverage), default=0)

    @property
    def examples(self) -> int:
        """Return how many examples were compared."""
        return sum(each.examples for each in self.coverage)

    @property
    def acceptance(self) -> tuple[float, float]:
        """Return the share of all drafts that is accepted, and the largest that a lossless rule has."""
        drafts = sum(each.examples * each.gamma for each in self.coverage) or 1
        accepted = sum(each.examples * each.accepted for each in self.coverage)
        return accepted / drafts, sum(each.examples * each.best for each in self.coverage) / drafts

    def __bool__(self) -> bool:
        return self.verdict == "LOSSLESS"

    def __repr__(self) -> str:
        """Return the findings as lines of text."""
        return "\n".join([f"{self.label}: {self.verdict}", *self._findings()])

    def _findings(self) -> list[str]:
        """Return what was covered and found, one sentence each."""
        if self.verdict == "INCONCLUSIVE":
            return [f"{self.reason[0].upper()}{self.reason[1:]}."]
        exact = sum(each.examples for each in self.coverage if each.exact)
        accepted, best = map(_places, self.acceptance)
        lines = [
            f"{self.examples} examples, {exact} of them in Fractions; seed {self.seed}.",
            f"Largest total variation of the joint law: {self._distance()}.",
            f"Accepted: {accepted} of the drafts, where the best lossless rule has {best}; "
            f"at most {_places(max(each.shortfall for each in self.coverage))} tokens a step below it.",
        ]
        return [*lines, f"Worst: {self.worst}."] if self.worst else lines

    def _distance(self) -> str:
        """Return the largest total variation, and what counts as none in the arithmetic that was used."""
        if self.worst is not None:
            return _shown(self.distance)
        kinds = {each.exact for each in self.coverage}
        floats = f"below {self.tolerance:g} in float64, which is rounding"
        return " and ".join(["0 in Fractions"] * (True in kinds) + [floats] * (False in kinds))

    def _repr_latex_(self) -> str:
        label = "".join("\\" + c if c in "_%&#${}" else c for c in self.label)
        if self.verdict == "INCONCLUSIVE":
            return rf"$\text{{{label}: INCONCLUSIVE}}$"
        largest = rf"\max_{{{self.examples}\ \text{{examples}}}} \mathrm{{TV}}(\text{{emitted}}, \text{{promised}})"
        value = f"= {_shown(self.distance)}" if self.worst is not None else r"\approx 0" if self.distance else "= 0"
        return rf"$\text{{{label}}}: \quad {largest} {value}, \quad \text{{{self.verdict}}}$"

    def _repr_html_(self) -> str:
        kinds = list(dict.fromkeys(each.kind for each in self.coverage))
        verdict = f'<b style="padding: 1px 4px; {COLOURS[self.verdict]}">{self.verdict}</b>'
        rows = [_row("th", [f"{escape(self.label)}: {verdict}"], len(kinds) + 1)]
        if kinds:
            rows += [_row("th", ["V, γ, steps", *map(escape, kinds)])]
        rows += [_row("td", cells) for cells in self._by_size()]
        rows += [_row("td", [escape(line)], len(kinds) + 1) for line in self._findings()]
        return f"<table>{''.join(rows)}</table>"

    def _by_size(self) -> list[list[str]]:
        """Return the cells of the table's rows, one row for each size and one column for each kind."""
        rows: dict[tuple, list[str]] = {}
        for each in self.coverage:
            size = each.vocabulary, each.gamma, each.steps
            rows.setdefault(size, [", ".join(map(str, size))]).append(_cell(each))
        return list(rows.values())


def _row(tag: str, cells: Iterable[str], span: int = 1) -> str:
    """Return a table's row; a single cell may span all of its columns."""
    start = f'<{tag} colspan="{span}" style="text-align: left">' if span > 1 else f'<{tag} style="text-align: center">'
    return "<tr>" + "".join(f"{start}{cell}</{tag}>" for cell in cells) + "</tr>"


def _cell(each: Coverage) -> str:
    """Return total variation, in words where it is rounding, and accepted drafts of a step over the most possible."""
    distance = _shown(each.distance) if each.differs else "0" if each.exact else "rounding"
    distance = f'<b style="{COLOURS["NOT LOSSLESS"]}">{distance}</b>' if each.differs else distance
    return f'{distance}<br><span style="font-size: 85%">{_places(each.accepted)} / {_places(each.best)}</span>'


def _shown(value: Any) -> str:
    """Return a probability to four places, or four digits if it is small."""
    return f"{float(value):.3e}" if 0 < value < 1e-3 else _places(value)


def _places(value: Any) -> str:
    return f"{float(value) + NUDGE:.4f}"
