"""Preemption of the newest sequence of the lowest class, by swapping if that is cheaper."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gatewayd_hooks.markers import hookimpl
from gatewayd_hooks.strategy import StrategyInfo
from gatewayd_preempt_swap.config import SwapConfig

if TYPE_CHECKING:
    from gatewayd_hooks.preemption import PreemptionStrategy


def _build(config: SwapConfig) -> PreemptionStrategy:
    from gatewayd_preempt_swap.strategy import Swap

    return Swap(config)


@hookimpl
def gatewayd_preemptions() -> Sequence[StrategyInfo[PreemptionStrategy]]:
    """Provide ``swap``."""
    return [
        StrategyInfo(
            name="swap",
            config_type=SwapConfig,
            build=_build,
            summary="Preempts the newest of the lowest class; swaps long sequences to host memory.",
            requires_spec=">=1.3,<2",
        )
    ]
