"""Samplers for `specnb.laws.audit`: an audited reference, faults at the boundaries, and adapters for real code.

A sampler is a function (draft int64 [G], q float64 [G, V], p float64 [G+1, V], uniforms float64 [G+1]) → the
emitted tokens: the accepted drafts and one final token. Mistakes that are wrong in law are in `specnb.mistakes`.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np

from specnb import rules
from specnb.rules import Rule
from specnb.verification import verify


def token(draft, q, p, uniforms):
    """Sample by the rule `token` in ten lines of NumPy; the faults below change one of them."""
    return _judged(draft, q, p, uniforms, _strictly, _residual)


def reference(draft, q, p, uniforms):
    """Sample as a reference implementation printed in a published teardown does, written anew from its description.

    The correction is the arg-max of the residual and the bonus that of p's row, so nothing is drawn; a draft is kept on
    r <= min(1, p/q) and where q(x) <= 0; the residual is divided by its mass, also by 0.
    """
    for i, x in enumerate(draft.tolist()):
        if q[i, x] > 0 and not uniforms[i] <= np.minimum(1, p[i, x] / q[i, x]):
            return [*draft[:i].tolist(), int(_over_its_sum(q[i], p[i]).argmax())]
    return [*draft.tolist(), int(p[-1].argmax())]


def closed_comparison(draft, q, p, uniforms):
    """Sample by the rule `token`, but accept on u·q <= p: at u = 0, tokens of probability 0."""
    return _judged(draft, q, p, uniforms, lambda u, q_x, p_x: q_x > 0 and u * q_x <= p_x, _residual)


def impossible_drafts_kept(draft, q, p, uniforms):
    """Sample by the rule `token`, but accept a draft that q can't have drawn."""
    return _judged(draft, q, p, uniforms, lambda u, q_x, p_x: q_x <= 0 or u * q_x < p_x, _residual)


def epsilon_floor(draft, q, p, uniforms):
    """Sample by the rule `token`, but add 1e-9 to the residual, so that impossible tokens come out."""
    return _judged(draft, q, p, uniforms, _strictly, lambda q, p: np.maximum(p - q, 0) + 1e-9)


def unguarded_residual(draft, q, p, uniforms):
    """Sample by the rule `token`, but divide the residual by its sum where that is 0."""
    return _judged(draft, q, p, uniforms, _strictly, lambda q, p: _over_its_sum(q, p))


BOUNDARY_FAULTS = (closed_comparison, impossible_drafts_kept, epsilon_floor, unguarded_residual)
"""The rule `token` with one fault each, which a law on ordinary rows hardly shows or not at all."""


def transformers_speculative_sampling() -> Callable[..., Any]:
    """Return transformers' own `_speculative_sampling` (of 5.17 to 5.24) as a sampler.

    Its `torch.rand_like` returns the given uniforms, and its `torch.multinomial`, after its own checks, inverts the
    distribution function; what it does is transformers', how it draws is not. It takes logits, here the logarithms.
    """
    import torch
    from transformers.generation import utils

    judge: Callable[..., Any] = utils._speculative_sampling
    extra = {"is_done_candidate": False} if "is_done_candidate" in inspect.signature(judge).parameters else {}
    check, generator = torch.multinomial, torch.Generator()

    def transformers_speculative_sampling(draft, q, p, uniforms):
        def multinomial(probs, num_samples):
            check(probs, num_samples, generator=generator)
            return torch.tensor([[_drawn(probs[0].numpy(), uniforms[-1])]])

        def rand_like(ratio):
            return torch.tensor(uniforms[:-1], dtype=ratio.dtype).reshape(ratio.shape)

        logits = [torch.tensor(rows).log()[None] for rows in (q, p)]
        with mock.patch.multiple(torch, rand_like=rand_like, multinomial=multinomial):
            tokens, _ = judge(torch.tensor(draft)[None], logits[0], len(draft), logits[1], **extra)
        return tokens[0]

    return transformers_speculative_sampling


@dataclass(frozen=True)
class VerifySampler:
    """`specnb.verify` as a sampler."""

    rule: Rule
    backend: str

    @property
    def __name__(self) -> str:
        return f"verify(rule={self.rule.label!r}, backend={self.backend!r})"

    def __call__(self, draft, q, p, uniforms):
        """Return the tokens of one call."""
        return verify(draft, q, p, rule=self.rule, uniforms=uniforms, backend=self.backend).tokens

    def batch(self, draft, q, p, uniforms):
        """Return the tokens of many calls, one for each row of uniforms [B, G+1]."""
        rows = [np.repeat(array[None], len(uniforms), axis=0) for array in (draft, q, p)]
        return verify(*rows, rule=self.rule, uniforms=uniforms, backend=self.backend).tokens


def verify_sampler(rule: str | Rule = "token", backend: str = "numpy") -> Callable[..., Any]:
    """Return `specnb.verify` as a sampler; under the rule `coupled`, which takes seeds, as one that draws for itself.

    >>> one_hot = np.eye(2)
    >>> verify_sampler()(np.array([0]), one_hot[:1], one_hot, np.array([0.5, 0.5]))
    array([0, 1])
    """
    rule = rules.get(rule)
    if rule.sampler != "verify_coupled":
        return VerifySampler(rule, backend)
    seeds = itertools.count()

    def verify_coupled(draft, q, p):
        return verify(draft, q, p, rule=rule, seed=next(seeds), backend=backend).tokens

    return verify_coupled


def _judged(draft, q, p, uniforms, accepts, masses):
    """Keep drafts while accepts(u, q(x), p(x)); draw a correction by masses(q, p), else a bonus by p's last row."""
    n = 0
    while n < len(draft) and accepts(uniforms[n], q[n, draft[n]], p[n, draft[n]]):
        n += 1
    row = masses(q[n], p[n]) if n < len(draft) else p[n]
    return [*draft[:n].tolist(), _drawn(row, uniforms[-1])]


def _strictly(u, q_x, p_x):
    return q_x > 0 and u * q_x < p_x


def _residual(q, p):
    """Return (p − q)+, or p where that leaves nothing; a NaN has no mass."""
    rest = np.where(p > q, p - q, 0)
    return rest if rest.any() else p


def _over_its_sum(q, p):
    with np.errstate(invalid="ignore"):
        rest = np.maximum(p - q, 0)
        return rest / rest.sum()


def _drawn(row, u):
    """Return the smallest v whose cumulative mass exceeds u times the whole; never one without mass."""
    ends = row.cumsum()
    return min(int((ends <= u * ends[-1]).sum()), int(row.nonzero()[0][-1]))
