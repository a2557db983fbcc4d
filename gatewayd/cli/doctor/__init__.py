"""``gatewayd doctor``: checks of the machine, the weights, the GPU and the service."""
