"""The exact law of one verdict: `specnb.law`."""

from __future__ import annotations

from typing import Any

import numpy as np

from specnb import rules
from specnb.arithmetic import FLOAT64
from specnb.arrays import describe, integers, is_torch, like
from specnb.errors import SpecnbError
from specnb.laws.rows import alike, arithmetic_of, as_array, as_rows
from specnb.rules import Rule
from specnb.streams import per_row
from specnb.validation import effective_lengths


def law(
    draft: Any, q: Any, p: Any, *, rule: str | Rule = "token", lengths: Any = None, onehot: Any = None
) -> tuple[Any, ...]:
    """Return the exact law of `specnb.verify` on these inputs, over its uniforms.

    draft: ids [B, G], −1 ends a row's draft; q: rows [B, G, V] or None (all one-hot); p: rows [B, G+1, V];
    lengths int [B], onehot bool [B] as in `specnb.verify`. The batch dimension is optional.

    Returns lengths [B, G+1], the probability that exactly n drafts are accepted, and correction [B, G+1, V],
    the law of the token emitted after n; beyond a row's own draft both are 0. They are float64 in the
    framework of p, or Fractions where p and q are.

    >>> n, correction = law([0], [[1.0, 0.0]], [[0.25, 0.75], [0.5, 0.5]])
    >>> n.tolist(), correction[0].tolist()
    ([0.75, 0.25], [0.0, 1.0])
    """
    given = p
    draft = integers("draft", as_array("draft", draft), None)
    if draft.ndim not in (1, 2):
        raise SpecnbError(f"draft is {describe(draft)}; expected ids [G] or [B, G]")
    batched = draft.ndim == 2
    draft = _batched(draft, 2)
    p, *drawn = (_batched(rows, 3) for rows in alike(as_rows("p", p), *([] if q is None else [as_rows("q", q)])))
    q = drawn[0] if drawn else None
    V = _vocabulary(draft, q, p)
    p, q = _widen(p, V), _draft_rows(draft, q, p, V, onehot)
    B, G = draft.shape
    if lengths is not None:
        lengths = per_row("lengths", np.atleast_1d(as_array("lengths", lengths)), B, draft, 0, G)
    length = effective_lengths(draft, lengths)
    law_of_n, correction = np.zeros((B, G + 1), p.dtype), np.zeros((B, G + 1, V), p.dtype)
    for L in np.unique(length):
        rows = length == L
        law_of_n[rows, : L + 1], correction[rows, : L + 1] = rules.get(rule).law(
            draft[rows, :L], q[rows, :L], p[rows, : L + 1], arithmetic_of(p, q)
        )
    answer = (law_of_n, correction) if batched else (law_of_n[0], correction[0])
    return tuple(like(array, given) if is_torch(given) else array for array in answer)


def _batched(array: np.ndarray, ndim: int) -> np.ndarray:
    return array[None] if array.ndim == ndim - 1 else array


def _vocabulary(draft: np.ndarray, q: np.ndarray | None, p: np.ndarray) -> int:
    """Return the wider vocabulary; raise where the shapes don't belong together."""
    B, G = draft.shape
    for name, rows, count in (("p", p, G + 1), ("q", q, G)):
        if rows is not None and (rows.ndim != 3 or rows.shape[:2] != (B, count)):
            raise SpecnbError(f"{name} has shape {rows.shape}; expected ({B}, {count}, V) for draft {draft.shape}")
    return max(p.shape[2], 0 if q is None else q.shape[2])


def _draft_rows(draft: np.ndarray, q: np.ndarray | None, p: np.ndarray, V: int, onehot: Any) -> np.ndarray:
    """Return q [B, G, V], one-hot at the draft for the rows that are declared so."""
    points = FLOAT64.point(draft, np.zeros((*draft.shape, V), p.dtype))
    declared = np.ones(len(draft), bool) if q is None else np.zeros(len(draft), bool)
    if onehot is not None:
        onehot = np.atleast_1d(as_array("onehot", onehot))
        if onehot.dtype != bool or onehot.shape != declared.shape:
            raise SpecnbError(f"onehot is {describe(onehot)}; expected bool [{len(draft)}]")
        declared |= onehot
    return points if q is None else np.where(declared[:, None, None], points, _widen(q, V))


def _widen(rows: np.ndarray, V: int) -> np.ndarray:
    """Return rows zero-extended to a vocabulary of V ids."""
    return np.concatenate([rows, np.zeros((*rows.shape[:2], V - rows.shape[2]), rows.dtype)], axis=2)
