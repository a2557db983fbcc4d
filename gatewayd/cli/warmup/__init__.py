"""``gatewayd warmup``: compile and tune kernels ahead of the first start."""
