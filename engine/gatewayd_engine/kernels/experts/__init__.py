"""Mixture-of-experts kernels: routing tables and grouped matmul."""
