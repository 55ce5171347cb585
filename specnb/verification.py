"""The verify API: check the inputs, choose a backend, call it."""

from __future__ import annotations

from typing import Any

import numpy as np

from specnb import backends, rules
from specnb.arrays import convert, describe, dtype_name, floats, integers, is_torch, like
from specnb.errors import SpecnbError
from specnb.rules import Rule
from specnb.sampling import MAX_VOCABULARY
from specnb.streams import keys, per_row
from specnb.validation import check_everything
from specnb.verdict import Verdict


def verify(
    draft: Any,
    q: Any,
    p: Any,
    *,
    rule: str | Rule = "token",
    lengths: Any = None,
    onehot: Any = None,
    seed: Any = None,
    position: Any = 0,
    uniforms: Any = None,
    backend: str | None = None,
    validate: str = "flag",
) -> Verdict:
    """Accept a prefix of each drafted path and draw one more token, so that the output law is the target's.

    By the rule `token`, draft i is accepted if u_i·q_i(x_i) < p_i(x_i). At the first rejection the final token
    comes from (p_i − q_i)+, normalised; after full acceptance it is a bonus from p_G. Every shape below may come
    without its batch dimension. No input is changed.

    Parameters
    ----------
    draft : int [B, G], the drafted tokens x. An id −1 ends a row's draft.
    q : float [B, G, V], the distributions they were drawn from; None if every draft is one-hot (prompt lookup,
        arg-max).
    p : float [B, G+1, V], the target's distributions, the last one for the bonus. float16, bfloat16, float32
        or float64; any strides; V up to 2^20. The narrower of q and p is extended by zeros.
    rule : "token" (Leviathan et al. 2023), "block" (Sun et al. 2024), "match" (accept if the target's own draw would
        agree; needs no q) or "coupled" (the draft was drawn by `specnb.draw` with the same rule; takes a seed,
        needs no q). Or a `specnb.rules.Rule`, lossy or your own, decided by its law
        on numpy and torch.
    lengths : int or int [B], drafts per row where rows are ragged; None is G.
    onehot : bool [B], rows whose drafts are one-hot whatever q holds.
    seed : int (row b uses stream b of that key) or int [B] (each request its own key), 0 <= seed < 2^63.
    position : int or int [B], absolute position of the step's first drafted token in its request.
    uniforms : float64 [B, G+1] in [0, 1) instead of a seed; the last column is for the final token.
    backend : "numpy", "torch" or "triton"; None chooses by the arrays. All return the same bits.
    validate : "flag" reports what the verdict read in `status`; "raise" reads every row and raises.

    Returns
    -------
    Verdict : tokens [B, G+1] padded with −1, num_accepted [B], status [B].

    Raises
    ------
    SpecnbError : shapes, dtypes or devices that don't fit, a missing seed, a backend that can't run; with
        validate="raise" also values that are no distribution or no drafted id.

    Source: Leviathan, Kalman, Matias, "Fast Inference from Transformers via Speculative Decoding", ICML 2023.

    Examples
    --------
    >>> import numpy as np
    >>> q = np.array([[0.2, 0.3, 0.5]])
    >>> p = np.array([[0.5, 0.3, 0.2], [0.0, 1.0, 0.0]])
    >>> verify([2], q, p, uniforms=[0.39, 0.5]).tokens.tolist()  # 0.39 · 0.5 < 0.2: accepted, then the bonus
    [2, 1]
    >>> verify([2], q, p, uniforms=[0.40, 0.5]).tokens.tolist()  # rejected: (p − q)+ is all on token 0
    [0, -1]
    """
    rule = rules.get(rule)
    p = floats("p", p, next((a for a in (p, q, draft) if is_torch(a)), None))
    batched = p.ndim == 3
    draft, q, p = _rows(draft, q, p, batched)
    B, G = draft.shape
    lengths, onehot = _per_request(lengths, onehot, B, G, p)
    seed, position, uniforms = _randomness(seed, position, uniforms, B, G, p)
    if uniforms is not None and rule.sampler == "verify_coupled":
        raise SpecnbError("rule 'coupled' shares a word with each draft, so it takes a seed; expected uniforms=None")
    read_q = q if rule.reads_q else None
    if validate == "raise":
        check_everything(draft, read_q, p, lengths, onehot, uniforms)
    elif validate != "flag":
        raise SpecnbError(f"validate is {validate!r}; expected 'flag' or 'raise'")

    backend = backends.default_name(p, rule) if backend is None else backend
    decide = backends.decider(backends.load(backend, p.device.type if is_torch(p) else "cpu"), rule)
    arrays = convert(backend, draft, read_q, p, lengths, onehot, seed, position, uniforms)
    tokens, num_accepted, status = (like(a, p) for a in decide(*arrays))
    if not batched:
        tokens, num_accepted, status = tokens[0], num_accepted[0], status[0]
    return Verdict(tokens, num_accepted, status, rule, backend, (draft, read_q, p, lengths, onehot))


def _rows(draft: Any, q: Any, p: Any, batched: bool) -> tuple[Any, Any, Any]:
    """Return draft [B, G], q [B, G, V'] or None, and p [B, G+1, V], after checking that they fit together."""
    draft = integers("draft", draft, p)
    q = q if q is None else floats("q", q, p)
    expected = "draft [B, G], q [B, G, V] or None, p [B, G+1, V], or all without B"
    came = f"draft is {describe(draft)}, q is {q if q is None else describe(q)}, p is {describe(p)}"
    if p.ndim not in (2, 3) or draft.ndim != p.ndim - 1 or (q is not None and q.ndim != p.ndim):
        raise SpecnbError(f"{came}; expected {expected}")
    if not batched:
        draft, q, p = draft[None], q if q is None else q[None], p[None]
    B, G = draft.shape
    fits = tuple(p.shape[:2]) == (B, G + 1) and (q is None or tuple(q.shape[:2]) == (B, G))
    if not fits:
        raise SpecnbError(f"{came}; expected {expected}: here p needs {G + 1} rows per request and q {G}")
    widths = [rows.shape[2] for rows in (q, p) if rows is not None]
    if not 1 <= min(widths) <= max(widths) <= MAX_VOCABULARY:
        raise SpecnbError(f"{came}; expected a vocabulary of 1 … {MAX_VOCABULARY} ids")
    return draft, q, p


def _per_request(lengths: Any, onehot: Any, B: int, G: int, p: Any) -> tuple[Any, Any]:
    """Return lengths int64 [B] or None and onehot bool [B] or None."""
    if lengths is not None:
        lengths = per_row("lengths", lengths, B, p, 0, G)
        lengths = like(np.full(B, lengths), p) if isinstance(lengths, int) else lengths
    if onehot is not None:
        onehot = like(onehot, p, "onehot")
        onehot = onehot.reshape(1) if onehot.ndim == 0 else onehot
        if dtype_name(onehot) != "bool" or tuple(onehot.shape) != (B,):
            raise SpecnbError(f"onehot is {describe(onehot)}; expected bool [{B}]")
    return lengths, onehot


def _randomness(seed: Any, position: Any, uniforms: Any, B: int, G: int, p: Any) -> tuple[Any, Any, Any]:
    """Return the seed or the uniforms, exactly one of them, and the position."""
    if (seed is None) == (uniforms is None):
        came = "neither came" if seed is None else "both came"
        raise SpecnbError(f"exactly one of seed and uniforms is required, {came}; pass seed=0, say")
    if uniforms is None:
        return *keys(seed, position, B, p), None
    uniforms = like(uniforms, p, "uniforms")
    uniforms = uniforms[None] if uniforms.ndim == 1 else uniforms
    if dtype_name(uniforms) != "float64" or tuple(uniforms.shape) != (B, G + 1):
        raise SpecnbError(f"uniforms are {describe(uniforms)}; expected float64 [{B}, {G + 1}], all in [0, 1)")
    return None, 0, uniforms
