"""When an engine was last heard, and what its silence means."""

from __future__ import annotations

import time

from gatewayd.engines.replicas.silence_limits import SilenceLimits
from gatewayd_engine.process.engine_stats import EngineStats
from gatewayd_engine.process.messages import ModelInfo


class Pulse:
    """One engine after the other.

    Attributes:
        patience: the limits.
    """

    def __init__(self, patience: SilenceLimits) -> None:
        self.patience = patience
        self._heard_at = self._ready_at = self._moved_at = 0.0
        self._computed = 0

    def begin(self) -> None:
        """Another engine starts."""
        self._ready_at = 0.0
        self.hear()
        self._moved_at = self._heard_at

    def hear(self) -> None:
        """It has said something."""
        self._heard_at = time.monotonic()

    def step(self, stats: EngineStats) -> None:
        """It has made a step."""
        if not stats.num_running or stats.computed_tokens != self._computed:
            self._computed, self._moved_at = stats.computed_tokens, time.monotonic()

    def ready(self) -> None:
        """It has said that it is loaded."""
        self._ready_at = self._moved_at = time.monotonic()

    @property
    def has_served(self) -> bool:
        """Whether it was loaded at any time."""
        return self._ready_at > 0

    @property
    def uptime(self) -> float:
        """Seconds since it was loaded."""
        return time.monotonic() - self._ready_at

    @property
    def silence(self) -> float:
        """Seconds since it was heard."""
        return time.monotonic() - self._heard_at

    @property
    def standstill(self) -> float:
        """Seconds for which it has had sequences in its batch and computed nothing for them."""
        return time.monotonic() - self._moved_at

    def is_doubtful(self, model: ModelInfo | None) -> bool:
        """Whether a loaded engine has been silent for longer than it should be."""
        patience = self.patience
        # What a full step may take at its slowest is not yet a reason for doubt.
        doubt = patience.doubt_seconds * patience.limit(model) / patience.hang_seconds
        return self.silence >= doubt

    def is_gone(self, model: ModelInfo | None) -> bool:
        """Whether it has been silent for so long that it is to be replaced."""
        limit = self.patience.limit(model if self.has_served else None)
        return self.silence > limit
