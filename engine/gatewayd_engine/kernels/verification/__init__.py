"""Speculative decoding kernels: draft slots, acceptance, moves of accepted tokens."""
