"""How long an engine may be silent before it counts as hung.

A loaded engine speaks at least once a second, except inside one step. A step of a large model
on a CPU lasts minutes, so patience grows with the work a full step can hold.
"""

from __future__ import annotations

from dataclasses import dataclass

from gatewayd_engine.process.messages import ModelInfo

# Far below what any supported machine does, in operations per second: this is when a step
# is certainly stuck, not when it is slow.
_SLOWEST = {"cpu": 5e9, "cuda": 5e12}


@dataclass(frozen=True, slots=True)
class SilenceLimits:
    """The limits on silence.

    Attributes:
        load_seconds: without a word while the model loads.
        hang_seconds: without a word afterwards, at least.
        doubt_seconds: after which the daemon no longer calls itself ready.
        dump_seconds: to write its stacks after SIGABRT, before SIGKILL.
        stop_seconds: to end by itself after ``Shutdown``.
    """

    load_seconds: float = 600.0
    hang_seconds: float = 10.0
    doubt_seconds: float = 5.0
    dump_seconds: float = 2.0
    stop_seconds: float = 3.0

    def limit(self, model: ModelInfo | None) -> float:
        """Seconds of silence after which the engine is hung; ``model`` None while loading."""
        if model is None:
            return self.load_seconds
        speed = _SLOWEST.get(model.device.partition(":")[0], _SLOWEST["cpu"])
        # Two operations per parameter and token; an upper bound for mixtures of experts.
        return max(self.hang_seconds, 2.0 * model.num_parameters * model.max_batch_tokens / speed)
