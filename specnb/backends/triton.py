"""The arithmetic contract in fused Triton launches, on CUDA or (TRITON_INTERPRET=1) interpreted on the CPU.

Signatures and results are those of `specnb.backends.numpy`. The kernels live in `kernels/specnb_kernels` behind a
custom operator, which `torch.compile` neither looks into nor fuses.
"""

from __future__ import annotations

import specnb_kernels

DRAFTING = 0


def verify(draft, q, p, lengths, onehot, seed, position, uniforms):
    """Accept a prefix of each draft, then pick the final token; see `specnb.backends.numpy.verify`."""
    return specnb_kernels.verify(draft, q, p, lengths, onehot, seed, position, uniforms)


def verify_block(draft, q, p, lengths, onehot, seed, position, uniforms):
    """Accept the longest prefix whose own test passes; see `specnb.backends.numpy.verify_block`."""
    return specnb_kernels.verify_block(draft, q, p, lengths, onehot, seed, position, uniforms)


def verify_coupled(draft, q, p, lengths, onehot, seed, position, uniforms):
    """Accept drafts while they equal the target's own draws; see `specnb.backends.numpy.verify_coupled`."""
    return specnb_kernels.verify_coupled(draft, q, p, lengths, onehot, seed, position, uniforms)


def verify_logits(
    rule_name, draft, y, z, draft_parameters, parameters, lengths, onehot, seed, position, uniforms
):  # fmt: skip
    """Decide a rule from both models' logits; see `specnb.backends.numpy.verify_logits`."""
    kernels = "token" if rule_name == "match" else rule_name
    return specnb_kernels.verify_logits(
        draft, y, z, draft_parameters, parameters, lengths, onehot, seed, position, uniforms, kernels
    )


def probabilities(logits, temperature, top_k, top_p, min_p):
    """Return the processed distributions of logits; see `specnb.backends.numpy.probabilities`."""
    return specnb_kernels.probabilities(logits, temperature, top_k, top_p, min_p)


def draw(probs, seed, position, index, purpose=DRAFTING):
    """Draw one token per row of probs [B, V] by its own word; −1 where there is no mass."""
    return specnb_kernels.draw(probs, seed, position, index, purpose)
