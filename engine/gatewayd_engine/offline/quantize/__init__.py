"""Calibrate and write quantized checkpoints: ``python -m gatewayd_engine.offline.quantize``."""
