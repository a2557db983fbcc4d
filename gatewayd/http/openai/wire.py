"""What the answers of both completion routes share: identity, usage, token texts, SSE framing.

Chunks are bytes put between precomputed bytes; only the text is encoded anew.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from gatewayd.errors import GatewayError
from gatewayd.http.asgi import encode_json
from gatewayd.pipeline.choice import Choice
from gatewayd.pipeline.generation import Generation

DONE = b"data: [DONE]\n\n"
PING = b": ping\n\n"
LEAST_LOGPROB = -9999.0
"""Stands for minus infinity, which JSON cannot say."""


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """What every chunk of an answer repeats.

    Attributes:
        id: of the answer.
        model: the name that the request used.
        created: Unix time.
        include_usage: whether a stream ends with the usage.
        continuous_usage: whether every chunk carries it.
        with_ids: whether token ids are wanted.
        with_logprobs: whether log-probabilities are wanted.
        with_prompt_logprobs: whether those of the prompt are, apart from an echo.
        service_tier: that a chat got; None if it asked for none.
    """

    id: str
    model: str
    created: int
    include_usage: bool = False
    continuous_usage: bool = False
    with_ids: bool = False
    with_logprobs: bool = False
    with_prompt_logprobs: bool = False
    service_tier: str | None = None


class Wire(Protocol):
    """The shape of one route's answers."""

    def opening(self, generation: Generation) -> bytes:
        """Events before the first text."""

    def before_chunk(self, generation: Generation, choice: Choice) -> Callable[[], None] | None:
        """What may be done in a thread before the next chunk; None for nothing."""

    def chunk(self, generation: Generation, choice: Choice) -> bytes:
        """Events for what has come to a choice since the last time; empty for nothing."""

    def closing(self, generation: Generation) -> bytes:
        """Events after the last choice has ended."""

    def answer(self, generation: Generation) -> bytes:
        """The whole answer at once, of a generation that has ended."""


def usage_of(generation: Generation) -> bytes:
    """The usage object so far."""
    prompt, completion = generation.prompt_tokens, generation.completion_tokens
    details = b""
    parsers = generation.work.options.parsers
    if parsers is not None and parsers.reasoning is not None:
        reasoning = sum([choice.reasoning_tokens for choice in generation.choices])
        details = b',"completion_tokens_details":{"reasoning_tokens":%d}' % reasoning
    return (
        b'{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d,'
        b'"prompt_tokens_details":{"cached_tokens":%d}%b}'
        % (prompt, completion, prompt + completion, generation.cached_tokens, details)
    )


def chunk_usage(identity: Identity, generation: Generation) -> bytes:
    """The end of a chunk, from the usage field on."""
    if not identity.include_usage:
        return b"}\n\n"
    if identity.continuous_usage:
        return b',"usage":' + usage_of(generation) + b"}\n\n"
    return b',"usage":null}\n\n'


def last_events(identity: Identity, object_name: bytes, generation: Generation) -> bytes:
    """The usage chunk, if wanted, and the end of the stream."""
    if not identity.include_usage:
        return DONE
    return (
        b'data: {"id":%b,"object":"%b","created":%d,"model":%b,"choices":[],"usage":%b}\n\n'
        % (
            encode_json(identity.id),
            object_name,
            identity.created,
            encode_json(identity.model),
            usage_of(generation),
        )
        + DONE
    )


def error_events(error: GatewayError) -> bytes:
    """The error object inside a stream, and its end: the status was sent long ago."""
    return b"data: " + encode_json(error.body()) + b"\n\n" + DONE


def finite(logprob: float) -> float:
    """A log-probability that JSON can say."""
    return logprob if logprob > LEAST_LOGPROB else LEAST_LOGPROB


def token_text(piece: bytes) -> str:
    """A token as text; U+FFFD where it is not whole characters."""
    return piece.decode(errors="replace")


def token_name(piece: bytes) -> str:
    r"""A token as a unique key: ``bytes:\xe2\x82`` where it is not whole characters."""
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)


def stop_fields(choice: Choice) -> dict[str, Any]:
    """How a choice ended."""
    return {"finish_reason": choice.finish_reason, "stop_reason": choice.stop_reason}
