"""Autotuning: choices among implementations of one operation, measured and cached on disk."""
