"""Speculative decoding kernels: draft slots, acceptance, compaction of accepted paths."""
