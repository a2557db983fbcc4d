"""Executor that runs engines as child processes of the daemon, connected by socket pairs."""

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
    """Provide ``local``."""
    return [
        StrategyInfo(
            name="local",
            config_type=LocalConfig,
            build=_build,
            summary="Runs engines as child processes of the daemon, which end when it does.",
        )
    ]
