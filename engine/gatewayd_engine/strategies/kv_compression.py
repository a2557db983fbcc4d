"""The seat of KV compression: who says what is attended to now, and what becomes of its faults."""

from __future__ import annotations

from typing import Any

from gatewayd_engine.process.config import EngineConfig, EngineConfigError
from gatewayd_engine.process.plugin_faults import StrategyFault, blame
from gatewayd_engine.state.running_batch import RunningBatch
from gatewayd_engine.state.sequence import CompressionState, Sequence
from gatewayd_engine.strategies.active import Strategies
from gatewayd_hooks.kv_compression import Moves, Selects
from gatewayd_hooks.strategy import Kind

_KIND = Kind.KV_COMPRESSION


class CompressionSeat:
    """Looks up, once in a step, what fills the slot; see ``attention.selection.Seat``."""

    def __init__(self, strategies: Strategies) -> None:
        self._strategies = strategies

    @property
    def selecting(self) -> Any | None:  # noqa: ANN401 - watched
        """What selects; None for nobody."""
        strategy = self._strategies.watched.get(_KIND)
        if strategy is None or not isinstance(self._strategies.bound[_KIND], Selects):
            return None
        return strategy

    def fail(self, error: BaseException) -> None:
        """Count a fault; nobody selects until a fresh instance gets its chance."""
        self._strategies.fall_back(_KIND, error)


def take_along(sequence: Sequence, rows: RunningBatch, strategies: Strategies) -> None:
    """Keep what is known of a sequence that is swapped out, if it is followed and that can be."""
    watched = strategies.watched.get(_KIND)
    if watched is None or not isinstance(strategies.bound[_KIND], Moves):
        return
    if rows.follower is not watched or rows.followed[sequence.row] != sequence.id:
        return
    try:
        with blame(_KIND):
            sequence.known = CompressionState(watched, watched.leave(sequence.row))
    except StrategyFault as fault:
        strategies.fall_back(_KIND, fault)


def refuse_compression_elsewhere(config: EngineConfig) -> None:
    """Say that a device attends with kernels of its own, which read all that there is.

    Raises:
        ConfigError: a compression is chosen for a device that is no CPU.
    """
    choice = config.kv_compression
    if choice is not None and config.device != "cpu":
        raise EngineConfigError(
            f"kv_compression is {choice.name!r} and device {config.device!r}: it works on a CPU"
            ' only, so far; set [kv_compression] strategy to "none", or [engine] device to "cpu"'
        )
