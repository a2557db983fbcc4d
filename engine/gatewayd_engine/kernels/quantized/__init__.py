"""Products with quantized weights: packing, dequantization, packed and block-scaled matmul."""
