"""The active KV compression as attention sees it, and recovery from its faults."""

from __future__ import annotations

from typing import Any

from gatewayd_engine.process.config import EngineConfig, EngineConfigError
from gatewayd_engine.process.plugin_faults import StrategyFault, attribute_faults
from gatewayd_engine.state.running_batch import RunningBatch
from gatewayd_engine.state.sequence import CompressionState, Sequence
from gatewayd_engine.strategies.active import Strategies
from gatewayd_hooks.kv_compression import Moves, Selects
from gatewayd_hooks.strategy import Kind

_KIND = Kind.KV_COMPRESSION


class ActiveCompression:
    """Lookup of the active KV compression, once per step."""

    def __init__(self, strategies: Strategies) -> None:
        self._strategies = strategies

    @property
    def selecting(self) -> Any | None:  # noqa: ANN401 - watched
        """The strategy that selects KV slots; None if there is none."""
        strategy = self._strategies.watched.get(_KIND)
        if strategy is None or not isinstance(self._strategies.bound[_KIND], Selects):
            return None
        return strategy

    def fail(self, error: BaseException) -> None:
        """Count a fault; selection is disabled until the strategy is retried."""
        self._strategies.fall_back(_KIND, error)


def snapshot_compression(sequence: Sequence, rows: RunningBatch, strategies: Strategies) -> None:
    """Save the compression state of a sequence being swapped out, if the strategy supports it."""
    watched = strategies.watched.get(_KIND)
    if watched is None or not isinstance(strategies.bound[_KIND], Moves):
        return
    # The strategy has no state of this sequence: it was activated later, or is not following it.
    if rows.follower is not watched or rows.followed[sequence.row] != sequence.id:
        return
    try:
        with attribute_faults(_KIND):
            sequence.compression_state = CompressionState(watched, watched.leave(sequence.row))
    # Handled here, because the preemption around it must complete.
    except StrategyFault as fault:
        strategies.fall_back(_KIND, fault)


def check_compression_device(config: EngineConfig) -> None:
    """Reject KV compression on devices whose attention kernels read the full context.

    Raises:
        EngineConfigError: KV compression is configured for a device other than a CPU.
    """
    choice = config.kv_compression
    if choice is not None and config.device != "cpu":
        raise EngineConfigError(
            f"kv_compression is {choice.name!r} and device {config.device!r}: it is supported on"
            ' CPUs only; set [kv_compression] strategy to "none", or [engine] device to "cpu"'
        )
