"""validate="raise": read every row that could decide a token, and name the first that is wrong."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from specnb.arrays import dtype_name, is_torch, to_numpy
from specnb.errors import SpecnbError

MASS_TOLERANCE = 1e-3
"""How far a row may be from mass 1: far above float32 and float16 softmax, far below any real mistake."""

LAW_TOLERANCE = 1e-6
"""How far a rule's own law may be from mass 1 and from no negative entry: far above float64's rounding."""

SOUND = 1e-2
"""How far from 1 rows may sum for a rule's law to be held to account on them: bfloat16 rows count, logits don't."""

BFLOAT16_TOLERANCE = 2.0**-8
"""The same in bfloat16, whose values carry 8 bits."""


class Names(NamedTuple):
    """How errors speak of q and p, and of a row with a value that isn't finite."""

    q: str
    p: str
    nonfinite: str


PROBABILITIES = Names("q", "p", "has a NaN or an infinity; expected probabilities")
LOGITS = Names(
    "draft_logits", "target_logits", "has a NaN or +inf, or nothing but −inf; expected a finite largest logit"
)


def check_everything(
    draft: Any, q: Any, p: Any, lengths: Any, onehot: Any, uniforms: Any, names: Names = PROBABILITIES
) -> None:
    """Raise `SpecnbError` naming the first bad row, or return. Arguments as `specnb.verify`, batched.

    names: LOGITS where q and p were made from logits, a row's NaN from one without a finite maximum.
    """
    draft_ids = to_numpy(draft)
    G = draft_ids.shape[1]
    length = effective_lengths(draft_ids, None if lengths is None else to_numpy(lengths))
    drafted = np.arange(G) < length[:, None]
    _check_rows(names.p, names.nonfinite, p, np.arange(G + 1) <= length[:, None])
    V = max(p.shape[2], 0 if q is None else q.shape[2])
    outside = drafted & ((draft_ids < 0) | (draft_ids >= V))
    _complain(outside, lambda b, i: f"draft is {draft_ids[b, i]}; expected an id in 0 … {V - 1}, or −1 to end")
    if q is not None:
        soft = drafted & (True if onehot is None else ~to_numpy(onehot)[:, None])
        _check_rows(names.q, names.nonfinite, q, soft)
        known = np.where((draft_ids >= 0) & (draft_ids < q.shape[2]), draft_ids, 0)
        q_x = np.where(known == draft_ids, _at(q, known), 0.0)
        _complain(
            soft & ~(q_x > 0),
            lambda b, i: (
                f"token {draft_ids[b, i]} has q = {q_x[b, i]:g}; expected a token drawn from q "
                "(was q processed after the draw, or is the draft one-hot?)"
            ),
        )
    if uniforms is not None:
        u = to_numpy(uniforms)
        _complain(~((u >= 0) & (u < 1)), lambda b, i: f"uniform is {u[b, i]}; expected a value in [0, 1)")


def effective_lengths(draft: np.ndarray, lengths: np.ndarray | None) -> np.ndarray:
    """Return how many drafts of each row count: up to its length and its first id −1."""
    before_end = np.cumsum(draft == -1, axis=1) == 0
    return before_end.sum(axis=1) if lengths is None else np.minimum(before_end.sum(axis=1), lengths)


def law_parts(answer: Any, drafts: int, length: int, vocabulary: int) -> tuple[Any, Any]:
    """Return lengths [b, L+1] and correction [b, L+1, V] as a rule's law returned them, or raise for other shapes."""
    if not isinstance(answer, tuple) or len(answer) != 2 or not all(hasattr(part, "shape") for part in answer):
        raise SpecnbError(f"a rule's law returned {type(answer).__name__}; expected two arrays: lengths, correction")
    shapes = (drafts, length + 1), (drafts, length + 1, vocabulary)
    for part, shape in zip(answer, shapes, strict=True):
        if tuple(part.shape) != shape:
            raise SpecnbError(f"a rule's law returned shape {tuple(part.shape)}; expected {shape}")
    return answer


def check_law(name: str, law: Any, sound: Any) -> None:
    """Raise if rows [b, N] of what a rule's law returned are no laws where its own rows were sound [b]."""
    with np.errstate(invalid="ignore"):
        fits = (law >= -LAW_TOLERANCE).all(-1) & (abs(law.sum(-1) - 1) <= LAW_TOLERANCE)
    if bool((wrong := sound & ~fits).any()):
        row = int(wrong.nonzero()[0][0])
        raise SpecnbError(
            f"row {row}: {name} of a rule's law sums to {float(law[row].sum()):.6g}, its least entry is "
            f"{float(law[row].min()):.6g}; expected a law: nowhere negative, of sum 1"
        )


def _check_rows(name: str, nonfinite: str, rows: Any, counts: np.ndarray) -> None:
    """Raise unless every row that counts is nonnegative, finite and of mass 1."""
    if not counts.any():
        return
    mass, lowest = _mass_and_minimum(rows)
    tolerance = BFLOAT16_TOLERANCE if dtype_name(rows) == "bfloat16" else MASS_TOLERANCE
    _complain(counts & ~np.isfinite(mass), lambda b, i: f"{name} {nonfinite}")
    _complain(counts & (lowest < 0), lambda b, i: f"{name} has the value {lowest[b, i]:g}; expected probabilities")
    _complain(
        counts & (abs(mass - 1) > tolerance),
        lambda b, i: (
            f"{name} sums to {mass[b, i]:.6g}; expected 1 within {tolerance:g} "
            "(logits? pass them through specnb.probabilities)"
        ),
    )


def _mass_and_minimum(rows: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return each row's sum in float64 and its smallest value, without a float64 copy of the rows."""
    if is_torch(rows):
        import torch

        return to_numpy(rows.sum(-1, dtype=torch.float64)), to_numpy(rows.amin(-1).double())
    with np.errstate(invalid="ignore"):  # inf − inf, which the caller names
        return rows.sum(-1, dtype=np.float64), rows.min(-1).astype(np.float64)


def _at(rows: Any, ids: np.ndarray) -> np.ndarray:
    """Return rows[b, i, ids[b, i]] as float64 [B, G]."""
    if is_torch(rows):
        import torch

        index = torch.from_numpy(ids).to(rows.device)[..., None]
        return to_numpy(rows.gather(2, index)[..., 0].double())
    return np.take_along_axis(rows, ids[..., None], axis=2)[..., 0].astype(np.float64)


def _complain(bad: np.ndarray, sentence: Any) -> None:
    """Raise about the first True of bad [B, positions]."""
    if bad.any():
        b, i = (int(k) for k in np.argwhere(bad)[0])
        raise SpecnbError(f"row {b}, position {i}: {sentence(b, i)}")
