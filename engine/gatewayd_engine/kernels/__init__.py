"""Fused Triton kernels around matmuls and attention, with reference implementations in torch."""
