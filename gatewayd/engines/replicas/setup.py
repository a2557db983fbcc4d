"""Setup of a replica's engines: configuration, runtime changes and quarantined strategies."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

import msgspec

from gatewayd.engines.replicas.silence_limits import SilenceLimits
from gatewayd_engine.process.config import ENGINE_KINDS, EngineConfig
from gatewayd_engine.process.logs import engine_label
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
    """Launch parameters of engines; the same for every replica."""

    executor: ExecutorStrategy
    command: tuple[str, ...]
    env: dict[str, str]
    config: EngineConfig
    patience: SilenceLimits = field(default_factory=SilenceLimits)


class EngineSetup:
    """Configuration of one replica, across its engines.

    Args:
        config: initial configuration, the same for every replica.
        index: index of the replica.

    Attributes:
        config: configuration of the next engine, to which the present one is updated.
        label: name of its engines in log lines.
    """

    def __init__(self, config: EngineConfig, index: int) -> None:
        self.config = config
        self._index = index
        self.label = engine_label(index, config.log_model)
        self._limits: SetLimits | None = None
        self._quotas: SetQuotas | None = None
        self._known = config
        self._marker = Marker.shared()

    def start_config(self) -> EngineConfig:
        """Return the initial configuration for an engine that starts."""
        # The previous engine may have ended inside a strategy, to be blamed for that one only.
        self._marker.clear()
        self._known = self.config
        return msgspec.structs.replace(self.config, replica=self._index, marker=self._marker.path)

    def mark_applied(self, config: EngineConfig) -> None:
        """Record a configuration that the present engine has already."""
        self.config = self._known = config

    def set_limits(self, limits: SetLimits) -> None:
        """Set limits for the present engine and later ones."""
        self._limits = limits

    def set_quotas(self, quotas: list[TenantQuota]) -> None:
        """Set tenants' KV-cache quotas for the present engine and later ones."""
        self._quotas = SetQuotas(quotas)

    def pending_updates(self) -> list[Command]:
        """Commands that update a loaded engine; it makes no step before it has them."""
        # Each change is sent once.
        before, self._known = self._known, self.config
        told = (self._limits, self._quotas)
        news: list[Command] = [command for command in told if command is not None]
        return news + [
            # Number 0: the answer is not awaited.
            SwapStrategy(0, kind.value, self.config.choices(kind), holds=True)
            for kind in ENGINE_KINDS
            if before.choices(kind) != self.config.choices(kind)
        ]

    def quarantine_crashed(self) -> tuple[str, bool]:
        """Quarantine the strategy whose call or import crashed an engine.

        Returns:
            A suffix for the error message, and whether the strategy was being loaded.
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
        """Exclude a strategy from later engines."""
        if [kind, name] not in self.config.quarantined:
            _log.error("%s.%s quarantined: it crashed %s", kind, name, self.label)
            quarantined = [*self.config.quarantined, [kind, name]]
            self.config = msgspec.structs.replace(self.config, quarantined=quarantined)

    def close(self) -> None:
        """Release the crash marker; no engine starts any more."""
        self._marker.close()
