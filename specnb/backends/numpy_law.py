"""Any rule by its law: the verdict that it gives, in the arithmetic of `specnb.arithmetic.ORDERED`."""

from __future__ import annotations

import numpy as np

from specnb.arithmetic import ORDERED
from specnb.backends.numpy_drafts import bad_uniforms, emitted, randomness, read
from specnb.backends.numpy_mass import Flag, pick, weights
from specnb.validation import SOUND, check_law, law_parts


def verify_by_law(law, draft, q, p, lengths, onehot, seed, position, uniforms):
    """Decide by any rule's law: keep draft i if u_i·P(n >= i) < P(n > i), then pick from the correction.

    law: a function as in `specnb.rules`, given float64 rows of one length of draft at a time. Reads everything, keeps
    no impossible draft whatever the law says, and raises `SpecnbError` where it is no law. Other arguments and
    results as `verify`.
    """
    drafts = read(draft, q, p, lengths, onehot)
    accept_u, final_word, bad_u = randomness(seed, position, uniforms, *draft.shape)
    law_of_n, correction, finite, sound = law_of(law, drafts)
    check_law("lengths", law_of_n, sound)
    possible = drafts.counted & drafts.inside & (drafts.q_x > 0)
    n = np.minimum(_first_failure(law_of_n, accept_u), np.cumprod(possible, axis=1).sum(axis=1))
    status = drafts.status(drafts.counted) | ~finite * Flag.NONFINITE | bad_uniforms(bad_u, drafts.counted)
    correction = correction[np.arange(len(n)), n]
    check_law("correction", correction, sound & ~status.astype(bool))
    token, flags = pick(weights(correction), final_word)
    return emitted(draft, n, token), n, (status | flags).astype(np.int32)


def law_of(law, drafts):
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
