"""Weights of few bits, and checkpoints of them, for tests of quantizers."""
