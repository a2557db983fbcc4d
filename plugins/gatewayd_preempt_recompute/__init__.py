"""Preemption by recomputation, of the newest sequence of the lowest class."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gatewayd_hooks.markers import hookimpl
from gatewayd_hooks.strategy import StrategyInfo
from gatewayd_preempt_recompute.config import RecomputeConfig

if TYPE_CHECKING:
    from gatewayd_hooks.preemption import PreemptionStrategy


def _build(config: RecomputeConfig) -> PreemptionStrategy:
    from gatewayd_preempt_recompute.strategy import Recompute

    return Recompute()


@hookimpl
def gatewayd_preemptions() -> Sequence[StrategyInfo[PreemptionStrategy]]:
    """Provide ``recompute``."""
    return [
        StrategyInfo(
            name="recompute",
            config_type=RecomputeConfig,
            build=_build,
            summary="Preempts the newest sequence of the lowest class, which is recomputed later.",
        )
    ]
