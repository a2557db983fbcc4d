"""Headers of generated responses: timing and remaining rate limits."""

from __future__ import annotations

from gatewayd.fairness.queue_capacity import QueueCapacity
from gatewayd.http.asgi import Header
from gatewayd.pipeline.generation import Generation
from gatewayd.pipeline.timing import RequestTiming
from gatewayd.tenants.limits import go_duration

_SERVER_TIMINGS = [
    b", ".join([b"%b;dur=%%.1f" % name.encode() for name in RequestTiming._fields[:number]])
    for number in range(len(RequestTiming._fields) + 1)
]
"""Formats of ``server-timing`` by the number of phases that have started."""


def answer_headers(generation: Generation, room: QueueCapacity) -> list[Header]:
    """Return headers for OpenAI's clients and browsers' developer tools, and a route's target.

    ``server-timing`` has the milliseconds of the phases that have started: a stream's headers are
    sent with its first token, before ``decode`` is known.

    Args:
        generation: ended, or with some output.
        room: current capacity of the queue.
    """
    timing, room = generation.timing, generation.remaining_capacity(room)
    spans = [1000 * seconds for seconds in timing if seconds is not None]
    route = generation.route
    named = [] if route is None else [(b"x-gatewayd-target", route.target.encode())]
    reset = go_duration(room.reset_seconds).encode()
    return [
        (b"openai-processing-ms", b"%d" % round(sum(spans))),
        (b"server-timing", _SERVER_TIMINGS[len(spans)] % (*spans,)),
        (b"x-ratelimit-limit-requests", b"%d" % room.limit_requests),
        (b"x-ratelimit-limit-tokens", b"%d" % room.limit_tokens),
        (b"x-ratelimit-remaining-requests", b"%d" % room.remaining_requests),
        (b"x-ratelimit-remaining-tokens", b"%d" % room.remaining_tokens),
        (b"x-ratelimit-reset-requests", reset),
        (b"x-ratelimit-reset-tokens", reset),
        *named,
    ]
