"""Fused kernels: Triton ones for GPUs with torch implementations, and compiled ones for CPUs."""
