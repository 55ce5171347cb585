"""Triton kernels for speculative verification; they need torch and triton and know nothing of specnb."""

from specnb_kernels.operators import draw, verify, verify_block, verify_coupled

__all__ = ["draw", "verify", "verify_block", "verify_coupled"]
