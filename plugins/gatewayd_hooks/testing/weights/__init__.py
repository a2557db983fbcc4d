"""Quantized weights, and checkpoints of them, for tests of quantizers."""
