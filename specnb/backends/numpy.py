"""The arithmetic contract, version 1, written to be read.

The other backends are independent translations of this file and its parts: `numpy_words` (random words),
`numpy_mass` (integer masses and the pick), `numpy_drafts` (what a verdict reads), `numpy_logits` (probabilities)
and `numpy_law` (any rule by its law). They return the same bits: everything that decides a token is float64
arithmetic without fusion, or integer arithmetic, which has no order.
"""

from __future__ import annotations

import numpy as np

from specnb.backends.numpy_drafts import bad_uniforms, effective_lengths, emitted, randomness, read
from specnb.backends.numpy_law import law_of
from specnb.backends.numpy_law import verify_by_law as verify_by_law
from specnb.backends.numpy_logits import CHUNK, processed
from specnb.backends.numpy_logits import probabilities as probabilities
from specnb.backends.numpy_mass import EXCESS, SHIFT32, Flag, pick, residual, weights
from specnb.backends.numpy_words import ACCEPTING as ACCEPTING
from specnb.backends.numpy_words import DRAFTING, OWN, words
from specnb.backends.numpy_words import FINAL as FINAL


def draw(probs, seed, position, index, purpose=DRAFTING):
    """Draw one token per row of probs [B, V] from the integer masses of its own word; −1 if there is no mass."""
    word = words(seed, position, [(index, purpose)], len(probs))[:, 0]
    step = max(1, CHUNK // probs.shape[1])
    starts = range(0, max(len(probs), 1), step)
    return np.concatenate([_drawn(probs[start : start + step], word[start : start + step]) for start in starts])


def _drawn(probs, word):
    return pick(weights(probs.astype(np.float64)), word)[0]


def verify(draft, q, p, lengths, onehot, seed, position, uniforms):
    """Accept a prefix of each draft by u·q(x) < p(x), then pick the final token from (p − q)+ or from p.

    Shapes and meanings: `specnb.verify`; q = None makes every draft one-hot, which is the rule `match`.
    Returns tokens [B, G+1], num_accepted [B] and status [B].
    """
    drafts = read(draft, q, p, lengths, onehot)
    accept_u, final_word, bad_u = randomness(seed, position, uniforms, *draft.shape)
    with np.errstate(invalid="ignore"):
        passes = drafts.counted & drafts.inside & (drafts.q_x > 0) & (accept_u * drafts.q_x < drafts.p_x)
    n = np.cumprod(passes, axis=1).sum(axis=1)
    seen = drafts.counted & (np.arange(draft.shape[1]) <= n[:, None])
    status = drafts.status(seen) | bad_uniforms(bad_u, seen)
    token, flags = _final(drafts, n, np.ones(len(n)), final_word)
    return emitted(draft, n, token), n, (status | flags).astype(np.int32)


def verify_block(draft, q, p, lengths, onehot, seed, position, uniforms):
    """Accept the longest prefix whose own test passes, whatever failed before (Sun et al. 2024).

    Reads all rows of p and q that a row's draft has. Arguments and results as `verify`.
    """
    drafts = read(draft, q, p, lengths, onehot)
    B, G = draft.shape
    accept_u, final_word, bad_u = randomness(seed, position, uniforms, B, G)
    a, n, status = _chain(drafts), np.zeros(B, np.int64), drafts.status(drafts.counted)
    for i in range(1, G + 1):
        more = drafts.length > i  # a draft's last test has no row behind it
        mass = np.zeros(B)
        if more.any():
            p_i, q_i = drafts.rows(np.full(B, i), more)
            w = residual(p_i, q_i, a[:, i])
            excess = more & ((w >> SHIFT32).sum(axis=1) >= EXCESS)
            mass = np.where(more & ~excess, w.sum(axis=1).astype(np.int64), 0) * 2.0**-62
            status |= excess * Flag.EXCESS_MASS
            finite = np.isfinite(p_i).all(axis=1) & np.isfinite(q_i).all(axis=1)
            status |= (more & ~finite) * Flag.NONFINITE
        whole = mass + (1 - a[:, i])
        success = np.where(more, np.where(whole > 0, mass / np.where(whole > 0, whole, 1), 1.0), a[:, i])
        n = np.where((drafts.length >= i) & (accept_u[:, i - 1] < success), i, n)
    token, flags = _final(drafts, n, a[np.arange(B), n], final_word)
    status = status | flags | bad_uniforms(bad_u, drafts.counted)
    token = np.where(status & Flag.EXCESS_MASS, -1, token)
    return emitted(draft, n, token), n, status.astype(np.int32)


def verify_coupled(draft, q, p, lengths, onehot, seed, position, uniforms):
    """Accept drafts while they equal the target's own draws, each by the word of its own position.

    Reads p up to the first difference, and never q. Arguments and results as `verify`, but for the uniforms: a
    position's word is shared with its draft, so there must be a seed.
    """
    (B, G), V = draft.shape, p.shape[2]
    length = effective_lengths(draft, lengths)
    columns = np.arange(G + 1)
    own, flags = np.empty((B, G + 1), np.int64), np.empty((B, G + 1), np.int64)
    for i in range(G + 1):
        word = words(seed, (position & 0xFFFFFFFF) + i, [(0, OWN)], B)[:, 0]
        own[:, i], flags[:, i] = pick(weights(p[:, i].astype(np.float64)), word)
    flags |= ~np.isfinite(p).all(axis=2) * Flag.NONFINITE
    counted = columns[:G] < length[:, None]
    flags[:, :G] |= (counted & ((draft < 0) | (draft >= V))) * Flag.OUT_OF_RANGE
    n = np.cumprod(counted & (draft == own[:, :G]), axis=1).sum(axis=1)
    status = np.bitwise_or.reduce(np.where(columns <= n[:, None], flags, 0), axis=1)
    return emitted(draft, n, own[np.arange(B), n]), n, status.astype(np.int32)


def verify_logits(
    rule_name, draft, y, z, draft_parameters, parameters, lengths, onehot, seed, position, uniforms
):  # fmt: skip
    """Decide a rule from the draft's logits y [B, G, V'] (None: one-hot) and the target's z [B, G+1, V].

    rule_name: "token", "match", "block" or "coupled". Each parameters: temperature, top_k, top_p and min_p, as
    `probabilities` takes them but one per request [B]. Other arguments and results as `verify`.
    """
    q = None if y is None or rule_name in ("match", "coupled") else processed(y, draft_parameters)
    decide = {"block": verify_block, "coupled": verify_coupled}.get(rule_name, verify)
    return decide(draft, q, processed(z, parameters), lengths, onehot, seed, position, uniforms)


def final_masses(rule, n, draft, q, p, lengths, onehot):
    """Return the integer masses [B, V] from which a rule picks the token behind n [B] accepted drafts."""
    drafts = read(draft, q, p, lengths, onehot)
    rows = np.arange(len(n))
    if rule.sampler == "verify_by_law":
        return weights(law_of(rule.law, drafts)[1][rows, n])
    if rule.sampler == "verify_coupled":
        return weights(drafts.rows(n, np.zeros(len(n), bool))[0])
    scale = _chain(drafts)[rows, n] if rule.sampler == "verify_block" else np.ones(len(n))
    return _masses(drafts, n, scale)[0]


def _masses(drafts, n, scale):
    """Return the masses of (scale·p − q)+ behind n accepted drafts, at the end of p, and whether all was finite."""
    rejected = n < drafts.length
    p_n, q_n = drafts.rows(n, rejected)
    w = residual(p_n, q_n, np.where(rejected, scale, 1.0))
    fallback = ~w.any(axis=1)
    if fallback.any():
        w[fallback] = weights(p_n[fallback])
    return w, np.isfinite(p_n).all(axis=1) & np.isfinite(q_n).all(axis=1)


def _final(drafts, n, scale, word):
    """Return the token behind n accepted drafts, and status bits."""
    w, finite = _masses(drafts, n, scale)
    token, status = pick(w, word)
    return token, status | ~finite * Flag.NONFINITE


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
