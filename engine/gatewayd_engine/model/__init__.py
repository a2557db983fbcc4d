"""The decoder of all supported architectures: specification, weight loading and forward pass."""
