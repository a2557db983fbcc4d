"""Linear layers of quantized and sparse weights, selected by format and device."""
