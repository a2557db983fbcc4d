"""Tools that never serve: training of the embedded models, quantization, quality."""
