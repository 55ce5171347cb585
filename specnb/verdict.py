"""What a verification decided, for each request of a batch."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntFlag
from typing import Any

import numpy as np

from specnb.arrays import to_numpy
from specnb.errors import SpecnbError
from specnb.rules import Decided, Rule

CONTRACT = 1
"""The version of the arithmetic that decides tokens; recorded in every verdict."""


class Status(IntFlag):
    """What a verdict found wrong in the values that it read; several may hold for one row.

    With n accepted drafts, a verdict reads p and q of the drafted tokens up to the first rejection, the
    uniforms up to there and the last one, the whole row of p at n, and that of q if a draft was rejected.
    """

    NONFINITE = 1  #: a NaN or an infinity
    IMPOSSIBLE = 2  #: the rejected token has no probability under its own draft: q(x) <= 0 or NaN
    OUT_OF_RANGE = 4  #: the rejected id is below −1 or outside the vocabulary
    NO_MASS = 8  #: nothing to pick from: the final token is −1
    EXCESS_MASS = 16  #: the row sums to about 2 or more (logits passed for probabilities?): the token is −1
    BAD_UNIFORM = 32  #: a uniform outside [0, 1), moved to the nearest valid one


@dataclass(frozen=True, eq=False)
class Processed:
    """Logits [B, R, V] as probabilities, made when and where they are looked at.

    parameters: temperature, top-k, top-p and min-p, each [B].
    """

    logits: Any
    parameters: tuple[Any, Any, Any, Any]

    def __getitem__(self, rows: slice) -> np.ndarray:
        from specnb.backends.numpy_logits import processed

        return processed(to_numpy(self.logits[rows]), [to_numpy(values[rows]) for values in self.parameters])


@dataclass(frozen=True, eq=False)
class Verdict(Decided):
    """The tokens each request emits in this step, in the framework and on the device of the inputs.

    tokens: int64 [B, G+1], the accepted drafts and one final token, padded with −1 (without batch: [G+1]).
    num_accepted: int64 [B], drafts kept; the step emits num_accepted + 1 tokens.
    status: int32 [B], 0 where nothing was wrong, else `Status` bits.
    decided_by, backend, contract: how it was decided; `rule` is the label of the first, `lossless` its claim.
    """

    tokens: Any
    num_accepted: Any
    status: Any
    decided_by: Rule
    backend: str
    inputs: tuple[Any, Any, Any, Any, Any] = field(repr=False)  # draft, q, p, lengths, onehot: [B, …], not copied
    contract: int = CONTRACT

    def residual(self, row: int = 0) -> np.ndarray:
        """Return the law, float64 [V], that the final token of a row was drawn from.

        By the rule `token` that is (p − q)+ over its sum after a rejection and p over its sum after full acceptance,
        in the contract's integer masses; all zeros where nothing could be drawn. It is read from the arrays that
        were verified: change those and it changes. By the rule `coupled` it is p over its sum: what the position's
        word draws from, whatever the draft (given the draft, `specnb.law` has its law).
        """
        from specnb.backends.numpy import final_masses

        B = len(self.inputs[0])
        if isinstance(row, bool) or not isinstance(row, (int, np.integer)) or not 0 <= row < B:
            raise SpecnbError(f"row {row!r} is outside this verdict's batch; expected 0 <= row < {B}")
        draft, *others = (values if values is None else to_numpy(values[row : row + 1]) for values in self.inputs)
        n = np.atleast_1d(to_numpy(self.num_accepted))[row : row + 1]
        mass = final_masses(self.decided_by, n, draft, *others)[0]
        drawn = np.atleast_2d(to_numpy(self.tokens))[row, n[0]] >= 0
        return mass / mass.sum() if drawn else np.zeros(len(mass))

    def _repr_html_(self) -> str:
        from specnb.display import verdict_html

        return verdict_html(self)
