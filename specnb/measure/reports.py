"""What a measurement found: the speedup that acceptance, c, v and the loop predict, beside the one by the clock."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from specnb import theory
from specnb.measure.accepting import Acceptance
from specnb.measure.loops import Loop
from specnb.measure.timing import Costs, middle, spread

if TYPE_CHECKING:
    import pandas as pd

STAGES = (
    "one α, v = 1",
    "v as measured",
    "α by position",
    "until the last request ends",
    "the loop's overhead",
    "forwards inside the loop",
    "the rounds of these runs",
    "achieved",
)
"""What each speedup of `Measurement.stages` has in it, and all before it; the fifth is the prediction."""
PREDICTED, ACHIEVED = 4, 7


@dataclass(frozen=True)
class Repeat:
    """One repeat: where the time of a plain and of a speculative run went, and how long two other runs took.

    seconds: of the plain and the speculative run that nothing watched. rounds: of the latter.
    """

    plain: Loop
    speculative: Loop
    seconds: tuple[float, float]
    rounds: int


@dataclass(frozen=True, eq=False, repr=False)
class Measurement:
    """Acceptance, costs and speeds of one target and drafter at one batch and γ; made by `speed`.

    Every speedup is over plain decoding by the same loop at the same batch, and a median over repeats.
    tokens: emitted per request in a run. repeats: what each one measured.
    """

    acceptance: Acceptance
    costs: Costs
    batch: int
    gamma: int
    tokens: int
    repeats: tuple[Repeat, ...]
    interrupted: bool = False

    @property
    def c(self) -> float:
        """The cost of a draft step in bare target forwards; of a drafter that is no model, its share of a proposal."""
        return middle(self._draft / self._plain)

    @property
    def v(self) -> float:
        """The cost of a verification in bare target forwards."""
        return middle(self._verification / self._plain)

    @property
    def overhead(self) -> tuple[float, float]:
        """What the loop adds to a plain and to a speculative round, in bare target forwards."""
        loops = [(each.plain.overhead, each.speculative.overhead) for each in self.repeats]
        plain, speculative = np.array(loops).reshape(-1, 2).T / self._plain
        return middle(plain), middle(speculative)

    @property
    def predicted(self) -> float:
        """The speedup that acceptance, bare forwards and the loop's overhead predict."""
        return middle(self.stages[:, PREDICTED])

    @property
    def achieved(self) -> float:
        """The speedup by the clock."""
        return middle(self.stages[:, ACHIEVED])

    @property
    def error(self) -> float:
        """How far the prediction is off: predicted over achieved, less 1."""
        return self.predicted / self.achieved - 1

    @property
    def stages(self) -> np.ndarray:
        """Speedups float64 [repeats, 8] with one cause more in each column: see `STAGES`."""
        rounds, rows = self._rounds()
        rows = [self._stages(r, each, rounds, rows) for r, each in enumerate(self.repeats)]
        return np.array(rows).reshape(-1, len(STAGES))

    def explained(self) -> pd.DataFrame:
        """Return one row per stage from the textbook's speedup to the achieved one: with, speedup, low, high, factor.

        factor: this row's speedup over that of the row before it, so that the factors multiply up to the last speedup.
        That of the last row is what none of the causes explains.
        """
        import pandas as pd

        values = [spread(column) for column in self.stages.T]
        frame = pd.DataFrame([(name, *each) for name, each in zip(STAGES, values, strict=True)])
        frame.columns = ["with", "speedup", "low", "high"]
        return frame.assign(factor=frame["speedup"] / frame["speedup"].shift())

    def to_frame(self) -> pd.DataFrame:
        """Return all numbers as tidy data: quantity, batch, gamma, position, value, low, high.

        Quantities: alpha and exact by position, with 95 % intervals; c and v; overhead of a plain and of a
        speculative round; and a speedup for each stage. low and high of what was timed are percentiles 20 and 80.
        """
        import pandas as pd

        own = {"batch": self.batch, "gamma": self.gamma}
        rows: list[dict[str, Any]] = []
        for each in self.acceptance.to_frame().to_dict("records"):
            ends = {name: each[name] for name in ("low", "high")}
            rows.append(own | ends | {"quantity": "alpha", "position": each["position"], "value": each["alpha"]})
            rows.append(own | {"quantity": "exact", "position": each["position"], "value": each["exact"]})
        rows += self.costs.to_frame().to_dict("records")
        for kind, value in zip(("plain", "speculative"), self.overhead, strict=True):
            rows.append(own | {"quantity": f"overhead, {kind}", "value": value})
        for each in self.explained().to_dict("records"):
            rows.append(own | each | {"quantity": f"speedup with {each['with']}", "value": each["speedup"]})
        columns = ["quantity", "batch", "gamma", "position", "value", "low", "high"]
        return pd.DataFrame(rows, columns=columns).astype({"position": "Int64"})

    def to_csv(self, path: str | Path) -> None:
        """Write `to_frame` as a CSV file."""
        self.to_frame().to_csv(path, index=False, lineterminator="\n")

    @property
    def _plain(self) -> np.ndarray:
        return self.costs.seconds("plain", self.batch)

    @property
    def _verification(self) -> np.ndarray:
        return self.costs.seconds("verification", self.batch, self.gamma)

    @property
    def _draft(self) -> np.ndarray:
        return self._draft_at(self.batch)

    def _draft_at(self, rows: float) -> np.ndarray:
        """Return the seconds of a draft step, bare where there is a model, else as the proposals took."""
        bare = self.costs.seconds("draft", rows)
        return np.where(np.isnan(bare), [each.speculative.draft_step for each in self.repeats], bare)

    def _rounds(self) -> tuple[float, float]:
        """Return the expected rounds until the last request of a batch ends, and the mean rows of a round."""
        ended = theory.steps_law(self.tokens, self.acceptance.profile).cumsum()
        one, longest = (1 - ended).sum(), (1 - ended**self.batch).sum()
        return float(longest), float(self.batch * one / longest)

    def _stages(self, r: int, each: Repeat, rounds: float, rows: float) -> list[float]:
        """Return the speedups of one repeat."""
        N, plain, ahead = self.tokens, each.plain, each.speculative
        forward, draft = self._plain[r], self._draft[r]
        c, v = draft / forward, self._verification[r] / forward
        bare = self.costs.seconds("verification", rows, self.gamma)[r] + self.gamma * self._draft_at(rows)[r]
        alpha, profile = float(np.nan_to_num(self.acceptance.pooled)), self.acceptance.profile
        predicted, inside = (N * (seconds + plain.overhead) + plain.prompt for seconds in (forward, plain.forwards))
        return [
            theory.speedup(alpha, self.gamma, c),
            theory.speedup(alpha, self.gamma, c, v),
            theory.speedup(profile, None, c, v),
            N * forward / (rounds * bare),
            predicted / (rounds * (bare + ahead.overhead) + ahead.prompt),
            inside / (rounds * (ahead.forwards + ahead.overhead) + ahead.prompt),
            inside / (each.rounds * (ahead.forwards + ahead.overhead) + ahead.prompt),
            each.seconds[0] / each.seconds[1],
        ]

    def __repr__(self) -> str:
        numbers = {"c": self.c, "v": self.v, "predicted": self.predicted, "achieved": self.achieved}
        shown = ", ".join(f"{name}={value:.3g}" for name, value in numbers.items())
        state = f"repeats={len(self.repeats)}{', interrupted' if self.interrupted else ''}"
        return f"Measurement(batch={self.batch}, gamma={self.gamma}, {shown}, {state})"
