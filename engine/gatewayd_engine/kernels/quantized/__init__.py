"""Matmul with quantized weights: packing, dequantization, packed and block-scaled kernels."""
