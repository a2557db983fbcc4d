"""What an engine is told: its configuration, what was changed since, who may not serve again."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

import msgspec

from gatewayd.engines.replicas.silence_limits import SilenceLimits
from gatewayd_engine.process.config import ENGINE_KINDS, EngineConfig
from gatewayd_engine.process.messages import (
    Command,
    SetLimits,
    SetQuotas,
    SwapStrategy,
    TenantQuota,
)
from gatewayd_hooks.execution import ExecutorStrategy
from gatewayd_hooks.host.marker import Marker

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Launch:
    """How engines are started and watched; the same for every replica."""

    executor: ExecutorStrategy
    command: tuple[str, ...]
    env: dict[str, str]
    config: EngineConfig
    patience: SilenceLimits = field(default_factory=SilenceLimits)


class EngineSetup:
    """The configuration of one replica, through all its lives.

    Args:
        config: the same for every replica.
        index: which of them it is.

    Attributes:
        config: for the next engine, and what the one that serves is brought to.
    """

    def __init__(self, config: EngineConfig, index: int) -> None:
        self.config = config
        self._index = index
        self._limits: SetLimits | None = None
        self._quotas: SetQuotas | None = None
        self._known = config
        self._marker = Marker.shared()

    def begin(self) -> EngineConfig:
        """An engine starts: what it is told first."""
        self._marker.clear()
        self._known = self.config
        return msgspec.structs.replace(self.config, replica=self._index, marker=self._marker.path)

    def settle(self, config: EngineConfig) -> None:
        """The engine serves with this already."""
        self.config = self._known = config

    def limit(self, limits: SetLimits) -> None:
        """Limits for this engine and the next ones."""
        self._limits = limits

    def bound(self, quotas: list[TenantQuota]) -> None:
        """Quotas of tenants for this engine and the next ones."""
        self._quotas = SetQuotas(quotas)

    def news(self) -> list[Command]:
        """What a loaded engine does not know yet; it makes no step before it does."""
        before, self._known = self._known, self.config
        told = (self._limits, self._quotas)
        news: list[Command] = [command for command in told if command is not None]
        return news + [
            SwapStrategy(0, kind.value, self.config.choices(kind), holds=True)
            for kind in ENGINE_KINDS
            if before.choices(kind) != self.config.choices(kind)
        ]

    def blame(self) -> tuple[str, bool]:
        """Whose call an engine did not survive: the next one starts without that strategy.

        Returns:
            The end of a sentence, and whether it was being loaded.
        """
        loading = self._marker.loaded()
        name = loading or self._marker.running()
        if name is None:
            return "", False
        kind, _, strategy = name.partition(".")
        self.quarantine(kind, strategy)
        if loading:
            return f" while loading {name}, which `gatewayd plugin doctor {name}` examines", True
        return f" in {name}", False

    def quarantine(self, kind: str, name: str) -> None:
        """The next engines start without a strategy."""
        if [kind, name] not in self.config.quarantined:
            _log.error("%s.%s quarantined: it crashed an engine", kind, name)
            quarantined = [*self.config.quarantined, [kind, name]]
            self.config = msgspec.structs.replace(self.config, quarantined=quarantined)

    def close(self) -> None:
        """No engine starts any more."""
        self._marker.close()
