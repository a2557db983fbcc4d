"""gatewayd: an inference gateway daemon whose every policy is a plugin."""

__version__ = "0.1.0"
