"""Triton kernels for speculative verification; they need torch and triton and know nothing of specnb."""

from specnb_kernels.launch import draw, verify

__all__ = ["draw", "verify"]
