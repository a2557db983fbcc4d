"""Prunes weights to 2:4 sparsity while a model is loaded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gatewayd_hooks.markers import hookimpl
from gatewayd_hooks.strategy import StrategyInfo
from gatewayd_quant_sparse24.config import Sparse24Config

if TYPE_CHECKING:
    from gatewayd_hooks.quantization import QuantizerStrategy


def _build(config: Sparse24Config) -> QuantizerStrategy:
    from gatewayd_quant_sparse24.strategy import Sparse24

    return Sparse24()


@hookimpl
def gatewayd_quantizers() -> Sequence[StrategyInfo[QuantizerStrategy]]:
    """Provide ``sparse24``."""
    return [
        StrategyInfo(
            name="sparse24",
            config_type=Sparse24Config,
            build=_build,
            summary="2:4 sparsity by magnitude; for models trained with it.",
            requires_spec=">=1.15,<2",
        )
    ]
