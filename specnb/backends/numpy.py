"""The arithmetic contract, version 1, written to be read.

The other backends are independent translations of this file and return the same bits. Everything that
decides a token is float64 arithmetic without fusion, or integer arithmetic, which has no order.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from specnb.arithmetic import ORDERED
from specnb.backends.numpy_logits import pad
from specnb.backends.numpy_logits import probabilities as probabilities
from specnb.backends.numpy_words import multiply_high, words
from specnb.validation import SOUND, check_law, law_parts
from specnb.verdict import Status

DRAFTING, ACCEPTING, FINAL, OWN = 0, 1, 2, 3
"""Purposes of a random word: no word serves two of them. OWN belongs to a position, whoever draws there."""

_SHIFT32 = np.uint64(32)
_EXCESS = 2**31 - 2**20


def weights(x):
    """Return the integer masses trunc(x·2^62) of float64 values in (0, 2); 0 for everything else, NaN too."""
    return (np.where((x > 0) & (x < 2), x, 0.0) * 2.0**62).astype(np.int64).view(np.uint64)


def pick(w, word):
    """Return the smallest v with w_0 + … + w_v > mulhi64(word, Σw) in each row [B, V], and its status bits.

    The token is −1 where the weights sum to 0 (NO_MASS) or to about 2 or more (EXCESS_MASS).
    """
    excess = (w >> _SHIFT32).sum(axis=1) >= _EXCESS
    cumulative = w.cumsum(axis=1)
    total = cumulative[:, -1]
    threshold = multiply_high(word, total)
    token = (cumulative <= threshold[:, None]).sum(axis=1)
    status = np.where(excess, Status.EXCESS_MASS, np.where(total == 0, Status.NO_MASS, 0))
    return np.where(status == 0, token, -1), status


def draw(probs, seed, position, index, purpose=DRAFTING):
    """Draw one token per row of probs [B, V] from the integer masses of its own word; −1 if there is no mass."""
    word = words(seed, position, [(index, purpose)], len(probs))[:, 0]
    token, _ = pick(weights(probs.astype(np.float64)), word)
    return token


def verify(draft, q, p, lengths, onehot, seed, position, uniforms):
    """Accept a prefix of each draft by u·q(x) < p(x), then pick the final token from (p − q)+ or from p.

    Shapes and meanings: `specnb.verify`; q = None makes every draft one-hot, which is the rule `match`.
    Returns tokens [B, G+1], num_accepted [B] and status [B].
    """
    drafts = _read(draft, q, p, lengths, onehot)
    accept_u, final_word, bad_u = _randomness(seed, position, uniforms, *draft.shape)
    with np.errstate(invalid="ignore"):
        passes = drafts.counted & drafts.inside & (drafts.q_x > 0) & (accept_u * drafts.q_x < drafts.p_x)
    n = np.cumprod(passes, axis=1).sum(axis=1)
    seen = drafts.counted & (np.arange(draft.shape[1]) <= n[:, None])
    unusable = (bad_u[:, :-1] & seen).any(axis=1) | bad_u[:, -1]
    status = drafts.status(seen) | unusable * Status.BAD_UNIFORM
    token, flags = _final(drafts, n, np.ones(len(n)), final_word)
    return _tokens(draft, n, token), n, (status | flags).astype(np.int32)


def verify_block(draft, q, p, lengths, onehot, seed, position, uniforms):
    """Accept the longest prefix whose own test passes, whatever failed before (Sun et al. 2024).

    Reads all rows of p and q that a row's draft has. Arguments and results as `verify`.
    """
    drafts = _read(draft, q, p, lengths, onehot)
    B, G = draft.shape
    accept_u, final_word, bad_u = _randomness(seed, position, uniforms, B, G)
    a, n, status = _chain(drafts), np.zeros(B, np.int64), drafts.status(drafts.counted)
    for i in range(1, G + 1):
        more = drafts.length > i  # a draft's last test has no row behind it
        mass = np.zeros(B)
        if more.any():
            p_i, q_i = drafts.rows(np.full(B, i), more)
            w = _residual(p_i, q_i, a[:, i])
            excess = more & ((w >> _SHIFT32).sum(axis=1) >= _EXCESS)
            mass = np.where(more & ~excess, w.sum(axis=1).astype(np.int64), 0) * 2.0**-62
            status |= excess * Status.EXCESS_MASS
            finite = np.isfinite(p_i).all(axis=1) & np.isfinite(q_i).all(axis=1)
            status |= (more & ~finite) * Status.NONFINITE
        whole = mass + (1 - a[:, i])
        success = np.where(more, np.where(whole > 0, mass / np.where(whole > 0, whole, 1), 1.0), a[:, i])
        n = np.where((drafts.length >= i) & (accept_u[:, i - 1] < success), i, n)
    unusable = (bad_u[:, :-1] & drafts.counted).any(axis=1) | bad_u[:, -1]
    token, flags = _final(drafts, n, a[np.arange(B), n], final_word)
    status = status | flags | unusable * Status.BAD_UNIFORM
    token = np.where(status & Status.EXCESS_MASS, -1, token)
    return _tokens(draft, n, token), n, status.astype(np.int32)


def verify_coupled(draft, q, p, lengths, onehot, seed, position, uniforms):
    """Accept drafts while they equal the target's own draws, each by the word of its own position.

    Reads p up to the first difference, and never q. Arguments and results as `verify`, but for the uniforms: a
    position's word is shared with its draft, so there must be a seed.
    """
    (B, G), V = draft.shape, p.shape[2]
    length = _effective_lengths(draft, lengths)
    columns = np.arange(G + 1)
    own, flags = np.empty((B, G + 1), np.int64), np.empty((B, G + 1), np.int64)
    for i in range(G + 1):
        word = words(seed, (position & 0xFFFFFFFF) + i, [(0, OWN)], B)[:, 0]
        own[:, i], flags[:, i] = pick(weights(p[:, i].astype(np.float64)), word)
    flags |= ~np.isfinite(p).all(axis=2) * Status.NONFINITE
    counted = columns[:G] < length[:, None]
    flags[:, :G] |= (counted & ((draft < 0) | (draft >= V))) * Status.OUT_OF_RANGE
    n = np.cumprod(counted & (draft == own[:, :G]), axis=1).sum(axis=1)
    status = np.bitwise_or.reduce(np.where(columns <= n[:, None], flags, 0), axis=1)
    return _tokens(draft, n, own[np.arange(B), n]), n, status.astype(np.int32)


def verify_by_law(law, draft, q, p, lengths, onehot, seed, position, uniforms):
    """Decide by any rule's law: keep draft i if u_i·P(n >= i) < P(n > i), then pick from the correction.

    law: a function as in `specnb.rules`, given float64 rows of one length of draft at a time. Reads everything, keeps
    no impossible draft whatever the law says, and raises `SpecnbError` where it is no law. Other arguments and
    results as `verify`.
    """
    drafts = _read(draft, q, p, lengths, onehot)
    accept_u, final_word, bad_u = _randomness(seed, position, uniforms, *draft.shape)
    law_of_n, correction, finite, sound = _law_of(law, drafts)
    check_law("lengths", law_of_n, sound)
    possible = drafts.counted & drafts.inside & (drafts.q_x > 0)
    n = np.minimum(_first_failure(law_of_n, accept_u), np.cumprod(possible, axis=1).sum(axis=1))
    unusable = (bad_u[:, :-1] & drafts.counted).any(axis=1) | bad_u[:, -1]
    status = drafts.status(drafts.counted) | ~finite * Status.NONFINITE | unusable * Status.BAD_UNIFORM
    correction = correction[np.arange(len(n)), n]
    check_law("correction", correction, sound & ~status.astype(bool))
    token, flags = pick(weights(correction), final_word)
    return _tokens(draft, n, token), n, (status | flags).astype(np.int32)


def final_masses(rule, n, draft, q, p, lengths, onehot):
    """Return the integer masses [B, V] from which a rule picks the token behind n [B] accepted drafts."""
    drafts = _read(draft, q, p, lengths, onehot)
    rows = np.arange(len(n))
    if rule.sampler == "verify_by_law":
        return weights(_law_of(rule.law, drafts)[1][rows, n])
    if rule.sampler == "verify_coupled":
        return weights(drafts.rows(n, np.zeros(len(n), bool))[0])
    scale = _chain(drafts)[rows, n] if rule.sampler == "verify_block" else np.ones(len(n))
    return _masses(drafts, n, scale)[0]


class _Drafts(NamedTuple):
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
        strange = seen & self.inside & (~np.isfinite(self.p_x) | ~np.isfinite(self.q_x))
        impossible = seen & self.inside & ~self.onehot[:, None] & ~(self.q_x > 0)
        status = strange.any(axis=1) * Status.NONFINITE | impossible.any(axis=1) * Status.IMPOSSIBLE
        return status | (seen & ~self.inside).any(axis=1) * Status.OUT_OF_RANGE

    def rows(self, n, subtracted):
        """Return float64 [B, V]: row n[b] of p, and that of q, one-hot or 0 where it isn't to be subtracted."""
        B, G = self.draft.shape
        rows, last = np.arange(B), np.minimum(n, G - 1)
        p_n = _widen(self.p[rows, np.minimum(n, G)], self.V)
        q_n = np.zeros((B, self.V)) if self.q is None or G == 0 else _widen(self.q[rows, last], self.V)
        q_n[~(subtracted & ~self.onehot)] = 0.0
        x_n = self.draft[rows, last] if G else np.full(B, -1)
        point = subtracted & self.onehot & (x_n >= 0) & (x_n < self.V)
        q_n[rows[point], x_n[point]] = 1.0
        return p_n, q_n


def _read(draft, q, p, lengths, onehot):
    """Gather what every verdict reads of a batch."""
    B, G = draft.shape
    V = max(p.shape[2], 0 if q is None else q.shape[2])
    onehot = np.full(B, q is None) if onehot is None or q is None else onehot
    length = _effective_lengths(draft, lengths)
    q_x = np.ones((B, G)) if q is None else np.where(onehot[:, None], 1.0, _gather(q, draft))
    inside = (draft >= 0) & (draft < V)
    return _Drafts(draft, q, p, V, length, onehot, np.arange(G) < length[:, None], inside, _gather(p, draft), q_x)


def _residual(p_n, q_n, scale):
    """Return the integer masses [B, V] of (scale·p − q⁺)+."""
    with np.errstate(invalid="ignore"):
        return weights(scale[:, None] * p_n - np.where(q_n > 0, q_n, 0.0))


def _masses(drafts, n, scale):
    """Return the masses of (scale·p − q)+ behind n accepted drafts, at the end of p, and whether all was finite."""
    rejected = n < drafts.length
    p_n, q_n = drafts.rows(n, rejected)
    w = _residual(p_n, q_n, np.where(rejected, scale, 1.0))
    fallback = ~w.any(axis=1)
    w[fallback] = weights(p_n[fallback])
    return w, np.isfinite(p_n).all(axis=1) & np.isfinite(q_n).all(axis=1)


def _final(drafts, n, scale, word):
    """Return the token behind n accepted drafts, and status bits."""
    w, finite = _masses(drafts, n, scale)
    token, status = pick(w, word)
    return token, status | ~finite * Status.NONFINITE


def _chain(drafts):
    """Return a_0 = 1, a_i = min(1, a_{i−1}·p/q) [B, G+1], 0 unless both are positive; a NaN is never accepted."""
    p_x, q_x = drafts.p_x, drafts.q_x
    possible = drafts.counted & drafts.inside & (p_x > 0) & (q_x > 0)
    a = np.ones((len(p_x), p_x.shape[1] + 1))
    for i in range(p_x.shape[1]):
        with np.errstate(invalid="ignore", over="ignore"):
            ratio = a[:, i] * p_x[:, i] / np.where(possible[:, i], q_x[:, i], 1.0)
        a[:, i + 1] = np.where(possible[:, i], np.where(ratio < 1, ratio, ratio >= 1), 0.0)
    return a


def _law_of(law, drafts):
    """Return the law of n [B, G+1] (0 beyond a row's draft), the corrections [B, G+1, V], and what rows are [B].

    finite: whether all were. sound: whether all were laws, about.
    """
    (B, G), V = drafts.draft.shape, drafts.V
    lengths, corrections = np.zeros((B, G + 1)), np.zeros((B, G + 1, V))
    finite, sound = np.ones(B, bool), np.ones(B, bool)
    pairs = [drafts.rows(np.full(B, i), drafts.length > i) for i in range(G + 1)]
    for L in np.unique(drafts.length).tolist():
        rows = drafts.length == L
        p = np.stack([pairs[i][0][rows] for i in range(L + 1)], axis=1)
        q = np.stack([pairs[i][1][rows] for i in range(L)], axis=1) if L else np.zeros((len(p), 0, V))
        with np.errstate(all="ignore"):  # rows that are no distributions are flagged
            answer = law(drafts.draft[rows, :L], q, p, ORDERED)
            sound[rows] = (abs(p.sum(2) - 1) < SOUND).all(1) & (abs(q.sum(2) - 1) < SOUND).all(1)
        lengths[rows, : L + 1], corrections[rows, : L + 1] = law_parts(answer, len(p), L, V)
        finite[rows] = np.isfinite(p).all(axis=(1, 2)) & np.isfinite(q).all(axis=(1, 2))
    return lengths, corrections, finite, sound


def _first_failure(law_of_n, u):
    """Return the first i with u_i·P(n >= i) >= P(n > i), for laws of n [B, G+1]; G if there is none."""
    n, at_least = np.zeros(len(law_of_n), np.int64), 0.0
    with np.errstate(invalid="ignore"):
        for i in reversed(range(law_of_n.shape[1])):
            above, at_least = at_least, law_of_n[:, i] + at_least
            n = np.where(u[:, i] * at_least < above, n, i) if i < u.shape[1] else np.full(len(law_of_n), i)
    return n


def _tokens(draft, n, final):
    """Return tokens [B, G+1]: n accepted drafts, the final token, then −1."""
    B, G = draft.shape
    tokens = np.full((B, G + 1), -1)
    tokens[:, :G] = np.where(np.arange(G) < n[:, None], draft, -1)
    tokens[np.arange(B), n] = final
    return tokens


def _randomness(seed, position, uniforms, B, G):
    """Return the accept uniforms float64 [B, G], the word of the final token [B] and which inputs are bad."""
    if uniforms is None:
        word = words(seed, position, [(i, ACCEPTING) for i in range(G)] + [(0, FINAL)], B)
        return (word[:, :G] >> np.uint64(11)) * 2.0**-53, word[:, G], np.zeros((B, G + 1), bool)
    bad = ~((uniforms >= 0) & (uniforms < 1))
    largest = (2**53 - 1) * 2.0**-53
    grid = (np.where(bad, np.where(uniforms >= 1, largest, 0.0), uniforms) * 2.0**53).astype(np.uint64)
    return grid[:, :G] * 2.0**-53, grid[:, G] << np.uint64(11), bad


def _effective_lengths(draft, lengths):
    """Return how many drafts of each row count: up to its length and its first id −1."""
    ended = np.cumsum(draft == -1, axis=1) > 0
    length = (~ended).sum(axis=1)
    return length if lengths is None else np.minimum(length, np.clip(lengths, 0, draft.shape[1]))


def _gather(rows, draft):
    """Return float64 [B, G]: each drafted token's probability, 0 where the row doesn't have that id."""
    V = rows.shape[2]
    known = (draft >= 0) & (draft < V)
    B, G = draft.shape
    values = rows[np.arange(B)[:, None], np.arange(G), np.where(known, draft, 0)]
    return np.where(known, values.astype(np.float64), 0.0)


def _widen(row, V):
    """Return rows [B, V'] as float64 [B, V], zero-extended."""
    return pad(row.astype(np.float64), V - row.shape[1], 0.0)
