"""``gatewayd warmup``: compile and tune ahead of the first start."""
