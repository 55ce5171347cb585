"""A run as data frames, and as a table that shows each round's tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from specnb.decoding.arguments import check_methods
from specnb.display import Strip, strip
from specnb.errors import SpecnbError

if TYPE_CHECKING:
    from specnb.decoding.generation import Generation


def to_frame(run: Generation, by: str) -> Any:
    """Return a pandas DataFrame of a run: see `Generation.to_frame`."""
    try:
        import pandas
    except ImportError:
        raise SpecnbError("to_frame needs pandas; pip install 'specnb[notebooks]', or read stats and rounds") from None
    if not isinstance(by, str) or by not in _FRAMES:
        raise SpecnbError(f"by is {by!r}; expected one of {', '.join(_FRAMES)}")
    return pandas.DataFrame(_FRAMES[by](run))


def _by_round(run: Generation) -> dict[str, Any]:
    rounds, counted = run.rounds, [0] * len(run.sequences)
    numbers = []
    for round_ in rounds:
        numbers.append(counted[round_.row])
        counted[round_.row] += 1
    return {
        "request": [r.row for r in rounds],
        "round": numbers,
        "step": [r.step for r in rounds],
        "position": [r.position for r in rounds],
        "drafted": [len(r.draft) for r in rounds],
        "accepted": [r.accepted for r in rounds],
        "emitted": [len(r.tokens) for r in rounds],
        "committed": [r.position + len(r.tokens) for r in rounds],
    }


def _by_request(run: Generation) -> dict[str, Any]:
    stats = run.stats
    counts = {"drafted": stats.drafted, "accepted": stats.accepted, "emitted": stats.emitted, "rounds": stats.rounds}
    return {"request": np.arange(len(run.sequences)), **counts, "committed": run.lengths.cpu().numpy()}


def _by_position(run: Generation) -> dict[str, Any]:
    stats = run.stats
    columns = {"position": np.arange(stats.reached.shape[1]), "reached": stats.reached.sum(0)}
    columns |= {"accepted": stats.accepted_at.sum(0), "acceptance": stats.acceptance}
    expected = stats.expected_acceptance
    return columns if expected is None else columns | {"expected": expected}


_FRAMES = {"round": _by_round, "request": _by_request, "position": _by_position}


@dataclass(frozen=True, repr=False)
class RoundStrips:
    """The rounds of one request, each as a strip of its tokens."""

    positions: tuple[int, ...]
    strips: tuple[Strip, ...]

    def __repr__(self) -> str:
        """Return a line per round, with marks instead of colours."""
        return "\n".join(f"{at:>5}  {one!r}" for at, one in zip(self.positions, self.strips, strict=True))

    def _repr_html_(self) -> str:
        cell = '<td style="text-align: left; vertical-align: top">'
        body = "".join(
            f"<tr>{cell}{at}</td>{cell}{one.chips()}</td></tr>"
            for at, one in zip(self.positions, self.strips, strict=True)
        )
        return f"<table><tr><th>position</th><th>tokens</th></tr>{body}</table>"


def round_strips(run: Generation, row: int, tokenizer: Any) -> RoundStrips:
    """Return the strips of a request's rounds, of ids or of the texts that a tokenizer has for them."""
    rounds = run.rounds_of(row)
    if tokenizer is not None:
        check_methods("tokenizer", tokenizer, ("decode",), "one with decode, as transformers' tokenizers, or None")
    strips = []
    for round_ in rounds:
        tokens, kinds = zip(*round_.kinds, strict=True) if round_.kinds else ((), ())
        names = [f"{token} " for token in tokens] if tokenizer is None else [tokenizer.decode([t]) for t in tokens]
        strips.append(strip(names, kinds))
    return RoundStrips(tuple(round_.position for round_ in rounds), tuple(strips))
