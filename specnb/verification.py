"""The verify API: check the inputs, choose a backend, call it."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from specnb import backends, rules
from specnb.arrays import convert, describe, dtype_name, floats, integers, is_torch, like
from specnb.errors import SpecnbError
from specnb.rules import Rule
from specnb.sampling import MAX_LOGITS, MAX_VOCABULARY, Sampling, probabilities, sampling_or_default
from specnb.streams import keys, per_row
from specnb.validation import LOGITS, PROBABILITIES, Names, check_everything
from specnb.verdict import Processed, Verdict


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
    step, batched = _checked(rule, draft, q, p, lengths, onehot, seed, position, uniforms)
    if _is_strict(validate):
        check_everything(step.draft, step.q, step.p, step.lengths, step.onehot, step.uniforms)
    name, module = _backend(backend, step.p, rule)
    decided = backends.decider(module, rule)(*convert(name, *step))
    return _verdict(decided, batched, rule, name, step)


def verify_logits(
    draft: Any,
    draft_logits: Any,
    target_logits: Any,
    *,
    sampling: Sampling | None = None,
    draft_sampling: Sampling | None = None,
    rule: str | Rule = "token",
    lengths: Any = None,
    onehot: Any = None,
    seed: Any = None,
    position: Any = 0,
    uniforms: Any = None,
    backend: str | None = None,
    validate: str = "flag",
) -> Verdict:
    """Verify drafts on both models' logits: the verdict of `verify` on their `probabilities`, token for token.

    On tensors a row is read only where the verdict needs it, and by the rules `token`, `match` and `coupled` none
    behind the first rejection; NumPy, the readable reference, reads all. Every shape below may come without its
    batch dimension. No input is changed.

    Parameters
    ----------
    draft : int [B, G], the drafted tokens. An id −1 ends a row's draft.
    draft_logits : float [B, G, V'] that they were drawn from, by `draft_sampling`; None if every draft is one-hot.
    target_logits : float [B, G+1, V], the last row for the bonus. float16, bfloat16, float32 or float64 (rounded to
        float32); any strides; V and V' up to 2^18. An id outside the narrower has probability 0 there.
    sampling : the target's `Sampling`, its values one for all requests or one per row [B]; None is temperature 1.
    draft_sampling : the draft's; None is the target's.
    rule, lengths, onehot, seed, position, uniforms, backend : as in `verify`.
    validate : "flag" reports what the verdict read in `status`; "raise" reads every row and raises.

    Returns
    -------
    Verdict : tokens [B, G+1] padded with −1, num_accepted [B], status [B].

    Raises
    ------
    SpecnbError : what `verify` raises for; with validate="raise" also a NaN, +inf or nothing but −inf in a row.

    Source: Leviathan, Kalman, Matias, "Fast Inference from Transformers via Speculative Decoding", ICML 2023,
    section 2.2: every such way to sample is plain sampling from an adjusted distribution.

    Examples
    --------
    >>> import numpy as np
    >>> z = np.array([[2.0, 1.0, 0.0], [0.0, 9.0, 0.0]])
    >>> verify_logits([1], z[:1], z, seed=0).tokens.tolist()  # a draft by the target's own logits is accepted
    [1, 1]
    >>> verify_logits([1], None, z, sampling=Sampling(temperature=0), seed=0).tokens.tolist()  # greedy: 0, not 1
    [0, -1]
    """
    rule = rules.get(rule)
    step, batched = _checked(
        rule, draft, draft_logits, target_logits, lengths, onehot, seed, position, uniforms, LOGITS, MAX_LOGITS
    )
    sampling = sampling_or_default(sampling)
    draft_sampling = sampling if draft_sampling is None else sampling_or_default(draft_sampling, "draft_sampling")
    parameters = [tuple(s.parameters(len(step.p), 1, step.p)) for s in (draft_sampling, sampling)]
    if _is_strict(validate):
        q = step.q if step.q is None else probabilities(step.q, draft_sampling)
        p = probabilities(step.p, sampling)
        check_everything(step.draft, q, p, step.lengths, step.onehot, step.uniforms, LOGITS)
    name, module = _backend(backend, step.p, rule)
    draft, y, z, *others = convert(name, *step)
    how = (s.arguments(name, x) for s, x in zip((draft_sampling, sampling), parameters, strict=True))
    decided = backends.logits_decider(module, rule)(draft, y, z, *how, *others)
    q, p = (rows if rows is None else Processed(rows, how) for rows, how in zip(step[1:3], parameters, strict=True))
    return _verdict(decided, batched, rule, name, step._replace(q=q, p=p))


class _Step(NamedTuple):
    """A step's inputs, checked and with a batch dimension, in a backend's order; q is None where it isn't read."""

    draft: Any
    q: Any
    p: Any
    lengths: Any
    onehot: Any
    seed: Any
    position: Any
    uniforms: Any


def _checked(
    rule: Rule, draft: Any, q: Any, p: Any, lengths: Any, onehot: Any, seed: Any, position: Any, uniforms: Any,
    names: Names = PROBABILITIES, most: int = MAX_VOCABULARY,
) -> tuple[_Step, bool]:  # fmt: skip
    """Return the inputs of a step, and whether they came with a batch dimension, or raise."""
    p = floats(names.p, p, next((a for a in (p, q, draft) if is_torch(a)), None))
    batched = p.ndim == 3
    draft, q, p = _rows(draft, q, p, batched, names, most)
    B, G = draft.shape
    lengths, onehot = _per_request(lengths, onehot, B, G, p)
    seed, position, uniforms = _randomness(seed, position, uniforms, B, G, p)
    if uniforms is not None and rule.sampler == "verify_coupled":
        raise SpecnbError("rule 'coupled' shares a word with each draft, so it takes a seed; expected uniforms=None")
    return _Step(draft, q if rule.reads_q else None, p, lengths, onehot, seed, position, uniforms), batched


def _is_strict(validate: str) -> bool:
    if validate not in ("flag", "raise"):
        raise SpecnbError(f"validate is {validate!r}; expected 'flag' or 'raise'")
    return validate == "raise"


def _backend(name: str | None, p: Any, rule: Rule) -> tuple[str, Any]:
    """Return the name and the module of the backend that was asked for, or that p and the rule choose."""
    name = backends.default_name(p, rule) if name is None else name
    return name, backends.load(name, p.device.type if is_torch(p) else "cpu")


def _verdict(decided: Any, batched: bool, rule: Rule, backend: str, step: _Step) -> Verdict:
    """Return what a backend decided, in the caller's framework and with the caller's dimensions."""
    tokens, num_accepted, status = (like(a, step.draft) for a in decided)
    if not batched:
        tokens, num_accepted, status = tokens[0], num_accepted[0], status[0]
    return Verdict(tokens, num_accepted, status, rule, backend, step[:5])


def _rows(draft: Any, q: Any, p: Any, batched: bool, names: Names, most: int) -> tuple[Any, Any, Any]:
    """Return draft [B, G], q [B, G, V'] or None, and p [B, G+1, V], after checking that they fit together."""
    draft = integers("draft", draft, p)
    q = q if q is None else floats(names.q, q, p)
    expected = f"draft [B, G], {names.q} [B, G, V] or None, {names.p} [B, G+1, V], or all without B"
    q_came = q if q is None else describe(q)
    came = f"draft is {describe(draft)}, {names.q} is {q_came}, {names.p} is {describe(p)}"
    if p.ndim not in (2, 3) or draft.ndim != p.ndim - 1 or (q is not None and q.ndim != p.ndim):
        raise SpecnbError(f"{came}; expected {expected}")
    if not batched:
        draft, q, p = draft[None], q if q is None else q[None], p[None]
    B, G = draft.shape
    fits = tuple(p.shape[:2]) == (B, G + 1) and (q is None or tuple(q.shape[:2]) == (B, G))
    if not fits:
        needed = f"here {names.p} needs {G + 1} rows per request and {names.q} {G}"
        raise SpecnbError(f"{came}; expected {expected}: {needed}")
    widths = [rows.shape[2] for rows in (q, p) if rows is not None]
    if not 1 <= min(widths) <= max(widths) <= most:
        raise SpecnbError(f"{came}; expected a vocabulary of 1 … {most} ids")
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
