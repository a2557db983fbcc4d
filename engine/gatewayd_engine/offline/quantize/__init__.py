"""Calibrates and writes checkpoints of few bits: ``python -m gatewayd_engine.offline.quantize``."""
