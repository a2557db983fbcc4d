"""What one request went through, as times of one clock.

``e2e == ttft + sum(itl)`` holds for every request: all three are differences of the same
arrivals. Latencies count from ``intended``, the moment at which the load said the request should
be sent, so that a client or a server that falls behind cannot hide it (coordinated omission).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise


@dataclass(slots=True)
class RequestRecord:
    """One request; times are seconds of ``time.perf_counter``.

    Attributes:
        intended: when it should have been sent.
        sent: when it was.
        arrivals: when output came; what came in one piece is one arrival.
        ended: when the stream was over, whatever the way.
        prompt_tokens: as the server counted; 0 when it did not say.
        cached_tokens: prompt tokens from the server's cache.
        output_tokens: as the server counted, else the number of events with output.
        error: a code, or None.
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
        """When output began; the end of the stream if none was seen (all of it unprintable)."""
        return self.arrivals[0] if self.arrivals else self.ended

    @property
    def last(self) -> float:
        """When the last output came."""
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
        """Gaps between arrivals, seconds: what a reader sees as stutter."""
        return [b - a for a, b in pairwise(self.arrivals)]

    @property
    def tpot(self) -> float | None:
        """Seconds per token after the first; None below two tokens."""
        if self.output_tokens < 2:
            return None
        return (self.last - self.first) / (self.output_tokens - 1)
