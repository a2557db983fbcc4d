"""Fused kernels around matrix products and attention: Triton kernels and their torch twins."""
