"""Offline tools: training of the embedded models, quantization, and quality measurements."""
