"""The small kernels between matrix products and attention: in Triton, and in torch beside it."""
