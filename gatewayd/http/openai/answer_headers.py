"""Headers of generated responses: timing and remaining rate limits."""

from __future__ import annotations

from gatewayd.fairness.queue_capacity import QueueCapacity
from gatewayd.http.asgi import Header
from gatewayd.pipeline.generation import Generation
from gatewayd.tenants.limits import go_duration


def answer_headers(generation: Generation, room: QueueCapacity) -> list[Header]:
    """Return headers for OpenAI's clients and browsers' developer tools.

    ``server-timing`` has the milliseconds of the phases that have started: a stream's headers are
    sent with its first token, before ``decode`` is known.

    Args:
        generation: ended, or with some output.
        room: current capacity of the queue.
    """
    timing, room = generation.timing, generation.remaining_capacity(room)
    spans, total = [], 0.0
    for name, seconds in zip(timing._fields, timing, strict=True):
        if seconds is not None:
            spans.append(f"{name};dur={1000 * seconds:.1f}")
            total += seconds
    reset = go_duration(room.reset_seconds).encode()
    return [
        (b"openai-processing-ms", b"%d" % round(1000 * total)),
        (b"server-timing", ", ".join(spans).encode()),
        (b"x-ratelimit-limit-requests", b"%d" % room.limit_requests),
        (b"x-ratelimit-limit-tokens", b"%d" % room.limit_tokens),
        (b"x-ratelimit-remaining-requests", b"%d" % room.remaining_requests),
        (b"x-ratelimit-remaining-tokens", b"%d" % room.remaining_tokens),
        (b"x-ratelimit-reset-requests", reset),
        (b"x-ratelimit-reset-tokens", reset),
    ]
