"""What a verification decided, for each request of a batch."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntFlag
from typing import Any

import numpy as np

from specnb.arrays import to_numpy
from specnb.errors import SpecnbError
from specnb.validation import effective_lengths

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
class Verdict:
    """The tokens each request emits in this step, in the framework and on the device of the inputs.

    tokens: int64 [B, G+1], the accepted drafts and one final token, padded with −1 (without batch: [G+1]).
    num_accepted: int64 [B], drafts kept; the step emits num_accepted + 1 tokens.
    status: int32 [B], 0 where nothing was wrong, else `Status` bits.
    rule, backend, contract: how it was decided.
    """

    tokens: Any
    num_accepted: Any
    status: Any
    rule: str
    backend: str
    inputs: tuple[Any, Any, Any, Any, Any] = field(repr=False)  # draft, q, p, lengths, onehot: [B, …], not copied
    contract: int = CONTRACT

    def residual(self, row: int = 0) -> np.ndarray:
        """Return the law, float64 [V], that the final token of a row was drawn from.

        After a rejection that is (p − q)+ over its sum, after full acceptance p over its sum, in the contract's
        integer masses; all zeros where nothing could be drawn. It is read from the arrays that were verified:
        change those and it changes.
        """
        from specnb.backends.numpy import weights

        draft, q, p, lengths, onehot = self.inputs
        if isinstance(row, bool) or not isinstance(row, (int, np.integer)) or not 0 <= row < len(draft):
            raise SpecnbError(f"row {row!r} is outside this verdict's batch; expected 0 <= row < {len(draft)}")
        n = int(np.atleast_1d(to_numpy(self.num_accepted))[row])
        length = effective_lengths(to_numpy(draft), None if lengths is None else to_numpy(lengths))[row]
        V = max(p.shape[2], 0 if q is None else q.shape[2])
        law, taken = _widened(p[row][n], V), np.zeros(V)
        if n < length and (q is None or (onehot is not None and bool(onehot[row]))):
            taken[np.arange(V) == int(draft[row][n])] = 1.0
        elif n < length and q is not None:
            taken = _widened(q[row][n], V)
        with np.errstate(invalid="ignore"):
            mass = weights(law - np.where(taken > 0, taken, 0.0))
        mass = mass if mass.any() else weights(law)
        drawn = np.atleast_2d(to_numpy(self.tokens))[row, n] >= 0
        return mass / mass.sum() if drawn else np.zeros(V)

    def _repr_html_(self) -> str:
        from specnb.display import verdict_html

        return verdict_html(self)


def _widened(row: Any, V: int) -> np.ndarray:
    """Return a row as float64 [V], zero-extended."""
    values = to_numpy(row).astype(np.float64)
    return np.pad(values, (0, V - len(values)))
