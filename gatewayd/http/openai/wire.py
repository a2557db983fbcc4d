"""Encoding shared by the completion routes: identity, usage, token texts, SSE framing.

Chunks are assembled from precomputed bytes; only the text is encoded for each chunk.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from gatewayd.errors import GatewayError
from gatewayd.http.asgi import encode_json
from gatewayd.pipeline.choice import Choice
from gatewayd.pipeline.generation import Generation
from gatewayd.text.tokenizer import Tokenizer

DONE = b"data: [DONE]\n\n"
PING = b": ping\n\n"
LEAST_LOGPROB = -9999.0
"""Replaces minus infinity, which JSON cannot represent."""


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """Fields that every chunk of a response repeats.

    Attributes:
        id: of the response.
        model: the name that the request used.
        created: Unix time.
        include_usage: whether a stream ends with the usage.
        continuous_usage: whether every chunk contains the usage.
        with_ids: whether token ids are returned.
        with_logprobs: whether log-probabilities are returned.
        with_prompt_logprobs: whether those of the prompt are returned, other than by an echo.
        service_tier: effective tier of a chat; None if it requested none.
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
    """Encoder of one route's responses."""

    def opening(self, generation: Generation) -> bytes:
        """Encode the events before the first text."""

    def before_chunk(self, generation: Generation, choice: Choice) -> Callable[[], None] | None:
        """Return work to run in a thread before the next chunk; None for nothing."""

    def chunk(self, generation: Generation, choice: Choice) -> bytes:
        """Encode the events for a choice's new output; empty if there is none."""

    def closing(self, generation: Generation) -> bytes:
        """Encode the events after the last choice has ended."""

    def answer(self, generation: Generation) -> bytes:
        """Encode the complete response of an ended generation."""


def usage_of(generation: Generation) -> bytes:
    """Encode the usage so far."""
    prompt, completion = generation.prompt_tokens, generation.completion_tokens
    details = b""
    if any([choice.counts_reasoning for choice in generation.choices]):
        reasoning = sum([choice.reasoning_tokens for choice in generation.choices])
        details = b',"completion_tokens_details":{"reasoning_tokens":%d}' % reasoning
    return (
        b'{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d,'
        b'"prompt_tokens_details":{"cached_tokens":%d}%b}'
        % (prompt, completion, prompt + completion, generation.cached_tokens, details)
    )


def chunk_usage(identity: Identity, generation: Generation) -> bytes:
    """Encode the end of a chunk, starting with the usage field."""
    if not identity.include_usage:
        return b"}\n\n"
    if identity.continuous_usage:
        return b',"usage":' + usage_of(generation) + b"}\n\n"
    return b',"usage":null}\n\n'


def last_events(identity: Identity, object_name: bytes, generation: Generation) -> bytes:
    """Encode the usage chunk, if requested, and the end of the stream."""
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
    """Encode an error inside a stream, whose status was already sent, and its end."""
    return b"data: " + encode_json(error.body()) + b"\n\n" + DONE


def finite(logprob: float) -> float:
    """Clamp a log-probability to a value that JSON can represent."""
    # False for NaN, which is replaced as well.
    return logprob if logprob > LEAST_LOGPROB else LEAST_LOGPROB


def local(tokenizer: Tokenizer | None) -> Tokenizer:
    """Return the tokenizer of a local model, which alone answers with token ids.

    Raises:
        TypeError: there is none.
    """
    if tokenizer is None:
        raise TypeError("the answers of upstreams have no token ids")
    return tokenizer


def token_text(piece: bytes) -> str:
    """Decode a token's bytes; U+FFFD for incomplete characters."""
    return piece.decode(errors="replace")


def token_name(piece: bytes) -> str:
    r"""Return a token as a unique key: ``bytes:\xe2\x82`` for incomplete characters."""
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)


def stop_fields(choice: Choice) -> dict[str, Any]:
    """Return the fields that describe how a choice ended."""
    return {"finish_reason": choice.finish_reason, "stop_reason": choice.stop_reason}
