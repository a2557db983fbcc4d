"""Heartbeat of an engine: the time of its last message, and limits on its silence."""

from __future__ import annotations

import time

from gatewayd.engines.replicas.silence_limits import SilenceLimits
from gatewayd_engine.process.engine_stats import EngineStats
from gatewayd_engine.process.messages import ModelInfo


class Heartbeat:
    """Heartbeat state of a replica, across its engines.

    Attributes:
        patience: limits on silence.
    """

    def __init__(self, patience: SilenceLimits) -> None:
        self.patience = patience
        self._heard_at = self._ready_at = self._moved_at = 0.0
        self._computed = 0

    def reset(self) -> None:
        """Reset for a new engine."""
        self._ready_at = 0.0
        self.record_message()
        self._moved_at = self._heard_at

    def record_message(self) -> None:
        """Record a message of the engine."""
        self._heard_at = time.monotonic()

    def record_step(self, stats: EngineStats) -> None:
        """Record a step of the engine."""
        # Idle engines are not stalled.
        if not stats.num_running or stats.computed_tokens != self._computed:
            self._computed, self._moved_at = stats.computed_tokens, time.monotonic()

    def record_ready(self) -> None:
        """Record that the engine has loaded."""
        self._ready_at = self._moved_at = time.monotonic()

    @property
    def has_served(self) -> bool:
        """Whether it was loaded."""
        return self._ready_at > 0

    @property
    def uptime(self) -> float:
        """Seconds since it was loaded."""
        return time.monotonic() - self._ready_at

    @property
    def silence(self) -> float:
        """Seconds since its last message."""
        return time.monotonic() - self._heard_at

    @property
    def stalled_seconds(self) -> float:
        """Seconds for which it had running sequences without computing any tokens."""
        return time.monotonic() - self._moved_at

    def is_doubtful(self, model: ModelInfo | None) -> bool:
        """Whether a loaded engine has been silent for suspiciously long."""
        patience = self.patience
        # The duration of the slowest full step is no reason for doubt yet.
        doubt = patience.doubt_seconds * patience.limit(model) / patience.hang_seconds
        return self.silence >= doubt

    def is_gone(self, model: ModelInfo | None) -> bool:
        """Whether it has been silent for so long that it must be replaced."""
        limit = self.patience.limit(model if self.has_served else None)
        return self.silence > limit
