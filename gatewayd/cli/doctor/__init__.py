"""``gatewayd doctor``: diagnostics of the machine, the weights, the GPU and the service."""
