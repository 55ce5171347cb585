"""Triton kernels for speculative verification; they need torch and triton and know nothing of specnb."""

from specnb_kernels.from_logits import probabilities, verify_logits
from specnb_kernels.operators import draw, verify, verify_block, verify_coupled

__all__ = ["draw", "probabilities", "verify", "verify_block", "verify_coupled", "verify_logits"]
