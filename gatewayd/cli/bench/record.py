"""Timestamps of one request.

``e2e == ttft + sum(itl)`` holds for every request: all three are differences of the same
arrivals. Latencies count from ``intended``, the scheduled send time, to avoid coordinated omission:
a client or server that falls behind cannot hide it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise


@dataclass(slots=True)
class RequestRecord:
    """Measurements of one request; times are seconds of ``time.perf_counter``.

    Attributes:
        intended: scheduled send time.
        sent: actual send time.
        arrivals: times when output arrived; output received in one piece is one arrival.
        ended: time of the end of the stream, with or without success.
        prompt_tokens: as the server counted; 0 if it did not report them.
        cached_tokens: prompt tokens from the server's prefix cache.
        output_tokens: as the server counted, else the number of events with output.
        error: error code, or None.
    """

    intended: float
    sent: float
    arrivals: list[float] = field(default_factory=list)
    ended: float = 0.0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    error: str | None = None

    @property
    def first(self) -> float:
        """Time of the first output; the end of the stream if no output was visible."""
        return self.arrivals[0] if self.arrivals else self.ended

    @property
    def last(self) -> float:
        """Time of the last output."""
        return self.arrivals[-1] if self.arrivals else self.ended

    @property
    def ttft(self) -> float:
        """Time to first token, seconds."""
        return self.first - self.intended

    @property
    def e2e(self) -> float:
        """Time to the last token, seconds."""
        return self.last - self.intended

    @property
    def itl(self) -> list[float]:
        """Inter-token latencies: gaps between arrivals, seconds."""
        return [b - a for a, b in pairwise(self.arrivals)]

    @property
    def tpot(self) -> float | None:
        """Time per output token after the first, seconds; None below two tokens."""
        if self.output_tokens < 2:
            return None
        return (self.last - self.first) / (self.output_tokens - 1)
