"""Engines as child processes of the daemon, each at the other end of a socket pair."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gatewayd_exec_local.config import LocalConfig
from gatewayd_hooks.markers import hookimpl
from gatewayd_hooks.strategy import StrategyInfo

if TYPE_CHECKING:
    from gatewayd_hooks.execution import ExecutorStrategy


def _build(config: LocalConfig) -> ExecutorStrategy:
    from gatewayd_exec_local.strategy import Local

    return Local()


@hookimpl
def gatewayd_executors() -> Sequence[StrategyInfo[ExecutorStrategy]]:
    """Offer ``local``."""
    return [
        StrategyInfo(
            name="local",
            config_type=LocalConfig,
            build=_build,
            summary="Child processes of the daemon; they end when it does.",
        )
    ]
