"""Serves causal language models of the library transformers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gatewayd_hooks.markers import hookimpl
from gatewayd_hooks.strategy import StrategyInfo
from gatewayd_model_transformers.config import TransformersBackendConfig

if TYPE_CHECKING:
    from gatewayd_hooks.model_backends import ModelBackendStrategy


def _build(config: TransformersBackendConfig) -> ModelBackendStrategy:
    from gatewayd_model_transformers.strategy import TransformersBackend

    return TransformersBackend()


@hookimpl
def gatewayd_model_backends() -> Sequence[StrategyInfo[ModelBackendStrategy]]:
    """Provide ``transformers``."""
    return [
        StrategyInfo(
            name="transformers",
            config_type=TransformersBackendConfig,
            build=_build,
            summary="Causal language models of transformers, over the engine's KV cache.",
            requires_spec=">=1.27,<2",
        )
    ]
