"""Settings of ``[model_backend.transformers]``: none."""

from gatewayd_hooks.strategy import StrategyConfig


class TransformersBackendConfig(StrategyConfig):
    """No settings."""
