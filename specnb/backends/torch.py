"""The arithmetic contract, batched in PyTorch: no host sync on CUDA, only the rows that a rule needs are read.

Nothing loops over rows but a CPU's few random words, which Python's integers make faster than tensors do. Under
`torch.compile` a whole verdict is one opaque operator, since fusing or contracting its float64 arithmetic would
change tokens. Signatures and results are those of `specnb.backends.numpy`.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from specnb.backends import torch_block, torch_coupled, torch_law, torch_lazy, torch_pick, torch_token, torch_words
from specnb.backends.torch_logits import probabilities as probabilities
from specnb.backends.torch_logits import processed
from specnb.backends.torch_mass import masses, pick
from specnb.backends.torch_words import words

DRAFTING = 0


def verify(draft, q, p, lengths, onehot, seed, position, uniforms):
    """Accept a prefix of each draft, then pick the final token; see `specnb.backends.numpy.verify`."""
    return _verdict("verify", draft, q, p, lengths, onehot, seed, position, uniforms)


def verify_block(draft, q, p, lengths, onehot, seed, position, uniforms):
    """Accept the longest prefix whose own test passes; see `specnb.backends.numpy.verify_block`."""
    return _verdict("verify_block", draft, q, p, lengths, onehot, seed, position, uniforms)


def verify_coupled(draft, q, p, lengths, onehot, seed, position, uniforms):
    """Accept drafts while they equal the target's own draws; see `specnb.backends.numpy.verify_coupled`."""
    return _verdict("verify_coupled", draft, q, p, lengths, onehot, seed, position, uniforms)


def verify_logits(
    rule_name, draft, y, z, draft_parameters, parameters, lengths, onehot, seed, position, uniforms
):  # fmt: skip
    """Decide a rule from both models' logits; see `specnb.backends.numpy.verify_logits`."""
    if not torch.compiler.is_compiling():
        return _verdict_of_logits(
            rule_name, draft, y, z, draft_parameters, parameters, lengths, onehot, seed, position, uniforms
        )
    seeds = *_split(seed), *_split(position)
    return torch.ops.specnb.verify_logits(
        draft, y, z, list(draft_parameters), list(parameters), lengths, onehot, *seeds, uniforms, rule_name
    )


def verify_by_law(law, draft, q, p, lengths, onehot, seed, position, uniforms):
    """Decide by any rule's law, on float64 tensors; see `specnb.backends.numpy.verify_by_law`.

    Waits for the device, since rows are grouped by the length of their draft. A law is never compiled: it breaks
    the graph, and `fullgraph=True` refuses it.
    """
    # Not a decorator: that would import the whole compiler for everybody.
    run: Any = torch.compiler.disable(_run) if torch.compiler.is_compiling() else _run
    return run(partial(torch_law.verify, law), draft, q, p, lengths, onehot, seed, position, uniforms)


def draw(probs, seed, position, index, purpose=DRAFTING):
    """Draw one token per row of probs [B, V] by its own word; −1 where there is no mass."""
    if not torch.compiler.is_compiling():
        return _draw(probs, seed, position, index, purpose)
    return torch.ops.specnb.draw(probs, *_split(seed), *_split(position), index, purpose)


def _draw(probs, seed, position, index, purpose):
    B, device = len(probs), probs.device
    if B == 0:
        return torch.empty(0, dtype=torch.int64, device=device)
    word = words(seed, position, [(index, purpose)], B, device)[:, 0]
    return pick(masses(probs)[0], word)[0]


_SAMPLERS = {
    "verify": torch_token.verify,
    "verify_block": torch_block.verify,
    "verify_coupled": torch_coupled.verify,
}


def _verdict(sampler, draft, q, p, lengths, onehot, seed, position, uniforms):
    if not torch.compiler.is_compiling():
        return _run(_SAMPLERS[sampler], draft, q, p, lengths, onehot, seed, position, uniforms)
    return torch.ops.specnb.verify(draft, q, p, lengths, onehot, *_split(seed), *_split(position), uniforms, sampler)


def _run(decide, draft, *others):
    """Return what a rule decides for the rows of a batch, of which it needs one at least."""
    B, G = draft.shape
    return decide(draft, *others) if B else _undecided(draft.new_empty(0, G + 1))


def _verdict_of_logits(
    rule_name, draft, y, z, draft_parameters, parameters, lengths, onehot, seed, position, uniforms
):  # fmt: skip
    arrays = lengths, onehot, seed, position, uniforms
    if rule_name in ("match", "coupled"):
        y = None
    on_cpu = torch_words.on_cpu(z.device) and len(draft)
    if on_cpu and rule_name == "coupled":

        def rows_of(some, i):
            return probabilities(z[some, i], *(values[some] for values in parameters))

        return torch_coupled.decide(rows_of, z.shape[2], draft, lengths, seed, position)
    if on_cpu and rule_name in ("token", "match") and z.shape[2] >= torch_pick.LONG:
        y = y if y is None else torch_lazy.Side(y, draft_parameters)
        return torch_lazy.verify(draft, y, torch_lazy.Side(z, parameters), *arrays)
    q = y if y is None else processed(y, draft_parameters)
    sampler = {"block": "verify_block", "coupled": "verify_coupled"}.get(rule_name, "verify")
    return _run(_SAMPLERS[sampler], draft, q, processed(z, parameters), *arrays)


def _undecided(tokens):
    """Return tokens [B, G+1] with counts [B] and status [B] of the right dtypes, none of them filled."""
    return tokens, tokens.new_empty(len(tokens)), tokens.new_empty(len(tokens), dtype=torch.int32)


@torch.library.custom_op("specnb::verify", mutates_args=())
def _verify_operator(
    draft: Tensor, q: Tensor | None, p: Tensor, lengths: Tensor | None, onehot: Tensor | None,
    seed: int, seeds: Tensor | None, position: int, positions: Tensor | None, uniforms: Tensor | None,
    sampler: str = "verify",
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    seed_or_seeds, start = _join(seed, seeds), _join(position, positions)
    return _run(_SAMPLERS[sampler], draft, q, p, lengths, onehot, seed_or_seeds, start, uniforms)


@_verify_operator.register_fake
def _(draft, q, p, lengths, onehot, seed, seeds, position, positions, uniforms, sampler="verify"):
    B, G = draft.shape
    return _undecided(draft.new_empty(B, G + 1))


@torch.library.custom_op("specnb::verify_logits", mutates_args=())
def _logits_operator(
    draft: Tensor, y: Tensor | None, z: Tensor, draft_parameters: list[Tensor], parameters: list[Tensor],
    lengths: Tensor | None, onehot: Tensor | None, seed: int, seeds: Tensor | None, position: int,
    positions: Tensor | None, uniforms: Tensor | None, rule_name: str,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    words = _join(seed, seeds), _join(position, positions), uniforms
    return _verdict_of_logits(rule_name, draft, y, z, draft_parameters, parameters, lengths, onehot, *words)


@_logits_operator.register_fake
def _(
    draft, y, z, draft_parameters, parameters, lengths, onehot, seed, seeds, position, positions, uniforms, rule_name
):  # fmt: skip
    B, G = draft.shape
    return _undecided(draft.new_empty(B, G + 1))


@torch.library.custom_op("specnb::draw", mutates_args=())
def _draw_operator(
    probs: Tensor, seed: int, seeds: Tensor | None, position: int, positions: Tensor | None, index: int, purpose: int
) -> Tensor:
    return _draw(probs, _join(seed, seeds), _join(position, positions), index, purpose)


@_draw_operator.register_fake
def _(probs, seed, seeds, position, positions, index, purpose):
    return probs.new_empty(len(probs), dtype=torch.int64)


def _split(value):
    """Return an int or a tensor as the pair (int, tensor or None) that an operator's schema can name."""
    return (0, value) if isinstance(value, Tensor) else (value or 0, None)


def _join(value, tensor):
    return value if tensor is None else tensor
