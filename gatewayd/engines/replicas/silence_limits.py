"""Limits on an engine's silence before it counts as hung.

A loaded engine sends a message at least once a second, except during a step. A step of a large
model on a CPU lasts minutes, so the limits grow with the work of a full step.
"""

from __future__ import annotations

from dataclasses import dataclass

from gatewayd_engine.process.messages import ModelInfo

# Operations per second, far below those of any supported machine: the limit must detect steps that
# are certainly stuck, not slow ones.
_SLOWEST = {"cpu": 5e9, "cuda": 5e12}


@dataclass(frozen=True, slots=True)
class SilenceLimits:
    """Limits on an engine's silence, and timeouts of its shutdown.

    Attributes:
        load_seconds: maximum silence while the model loads.
        hang_seconds: maximum silence afterwards, at least.
        doubt_seconds: silence after which the daemon no longer reports itself ready.
        dump_seconds: time to dump its stacks after SIGABRT, before SIGKILL.
        stop_seconds: time to exit by itself after ``Shutdown``.
    """

    load_seconds: float = 600.0
    hang_seconds: float = 10.0
    doubt_seconds: float = 5.0
    dump_seconds: float = 2.0
    stop_seconds: float = 3.0

    def limit(self, model: ModelInfo | None) -> float:
        """Seconds of silence after which the engine is hung; ``model`` is None while loading."""
        if model is None:
            return self.load_seconds
        speed = _SLOWEST.get(model.device.partition(":")[0], _SLOWEST["cpu"])
        # Two operations per parameter and token; an upper bound for mixtures of experts.
        return max(self.hang_seconds, 2.0 * model.num_parameters * model.max_batch_tokens / speed)
