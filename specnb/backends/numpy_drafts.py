"""What every verdict reads of a batch of drafts, and what it writes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from specnb.backends.numpy_logits import pad
from specnb.backends.numpy_mass import Flag
from specnb.backends.numpy_words import ACCEPTING, FINAL, words


class Drafts(NamedTuple):
    """A batch of drafts with each drafted token's own probabilities; shapes [B, G] and [B]."""

    draft: np.ndarray
    q: np.ndarray | None
    p: np.ndarray
    V: int
    length: np.ndarray
    onehot: np.ndarray
    counted: np.ndarray
    inside: np.ndarray
    p_x: np.ndarray
    q_x: np.ndarray

    def status(self, seen):
        """Return the status bits [B] of the drafted tokens and their probabilities where they were seen [B, G]."""
        finite, possible = np.isfinite(self.p_x) & np.isfinite(self.q_x), (self.q_x > 0) | self.onehot[:, None]
        if not (seen & ~(self.inside & finite & possible)).any():
            return np.zeros(len(seen), np.int64)
        strange = seen & self.inside & ~finite
        impossible = seen & self.inside & ~possible
        status = strange.any(axis=1) * Flag.NONFINITE | impossible.any(axis=1) * Flag.IMPOSSIBLE
        return status | (seen & ~self.inside).any(axis=1) * Flag.OUT_OF_RANGE

    def rows(self, n, subtracted):
        """Return float64 [B, V]: row n[b] of p, and that of q, one-hot or 0 where it isn't to be subtracted."""
        B, G = self.draft.shape
        rows, last = np.arange(B), np.minimum(n, G - 1)
        p_n = _widen(self.p[rows, np.minimum(n, G)], self.V)
        q_n = np.zeros((B, self.V)) if self.q is None or G == 0 else _widen(self.q[rows, last], self.V)
        q_n[~(subtracted & ~self.onehot)] = 0.0
        if G and self.onehot.any():
            x_n = self.draft[rows, last]
            point = subtracted & self.onehot & (x_n >= 0) & (x_n < self.V)
            q_n[rows[point], x_n[point]] = 1.0
        return p_n, q_n


def read(draft, q, p, lengths, onehot):
    """Gather what every verdict reads of a batch."""
    B, G = draft.shape
    V = max(p.shape[2], 0 if q is None else q.shape[2])
    onehot = np.full(B, q is None) if onehot is None or q is None else onehot
    length = effective_lengths(draft, lengths)
    q_x = np.ones((B, G)) if q is None else np.where(onehot[:, None], 1.0, _gather(q, draft))
    inside = (draft >= 0) & (draft < V)
    return Drafts(draft, q, p, V, length, onehot, np.arange(G) < length[:, None], inside, _gather(p, draft), q_x)


def emitted(draft, n, final):
    """Return tokens [B, G+1]: n accepted drafts, the final token, then −1."""
    B, G = draft.shape
    tokens = np.full((B, G + 1), -1)
    tokens[:, :G] = np.where(np.arange(G) < n[:, None], draft, -1)
    tokens[np.arange(B), n] = final
    return tokens


def randomness(seed, position, uniforms, B, G):
    """Return the accept uniforms float64 [B, G], the word of the final token [B] and which inputs are bad, or None."""
    if uniforms is None:
        word = words(seed, position, [(i, ACCEPTING) for i in range(G)] + [(0, FINAL)], B)
        return (word[:, :G] >> np.uint64(11)) * 2.0**-53, word[:, G], None
    bad = ~((uniforms >= 0) & (uniforms < 1))
    largest = (2**53 - 1) * 2.0**-53
    grid = (np.where(bad, np.where(uniforms >= 1, largest, 0.0), uniforms) * 2.0**53).astype(np.uint64)
    return grid[:, :G] * 2.0**-53, grid[:, G] << np.uint64(11), bad


def bad_uniforms(bad, seen):
    """Return the status bits [B] of uniforms [B, G+1] that were bad where drafts were seen [B, G], or at the end."""
    return 0 if bad is None else ((bad[:, :-1] & seen).any(axis=1) | bad[:, -1]) * Flag.BAD_UNIFORM


def effective_lengths(draft, lengths):
    """Return how many drafts of each row count: up to its length and its first id −1."""
    ended = draft == -1
    length = (np.cumsum(ended, axis=1) == 0).sum(axis=1) if ended.any() else np.full(len(draft), draft.shape[1])
    return length if lengths is None else np.minimum(length, np.maximum(lengths, 0))


def _gather(rows, draft):
    """Return float64 [B, G]: each drafted token's probability, 0 where the row doesn't have that id."""
    V = rows.shape[2]
    known = (draft >= 0) & (draft < V)
    B, G = draft.shape
    each, place = np.arange(B)[:, None], np.arange(G)
    if known.all():
        return rows[each, place, draft].astype(np.float64)
    return np.where(known, rows[each, place, np.where(known, draft, 0)].astype(np.float64), 0.0)


def _widen(row, V):
    """Return rows [B, V'] as float64 [B, V], zero-extended."""
    return pad(row.astype(np.float64), V - row.shape[1], 0.0)
