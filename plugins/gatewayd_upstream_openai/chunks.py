"""Chunks of a streamed answer: those fields that are used, by their types."""

from __future__ import annotations

from typing import Any

import msgspec


class CalledFunction(msgspec.Struct):
    """Function of a call, in pieces."""

    name: str | None = None
    arguments: str | None = None


class CallDelta(msgspec.Struct):
    """Piece of a tool call."""

    index: int | None = None
    id: str | None = None
    function: CalledFunction | None = None


class MessageDelta(msgspec.Struct):
    """Piece of a message."""

    content: str | None = None
    refusal: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[CallDelta] | None = None
    function_call: CalledFunction | None = None


class TopLogprob(msgspec.Struct):
    """Alternative of a token."""

    token: str
    logprob: float
    bytes: list[int] | None = None


class TokenLogprob(TopLogprob):
    """Token of the answer."""

    top_logprobs: list[TopLogprob] = []


class ChunkLogprobs(msgspec.Struct):
    """Log-probabilities of a piece: of a chat by token, of a text completion in columns."""

    content: list[TokenLogprob] | None = None
    tokens: list[str] = []
    token_logprobs: list[float | None] = []
    top_logprobs: list[dict[str, float] | None] | None = None


class ChunkChoice(msgspec.Struct):
    """Piece of one choice."""

    index: int = 0
    delta: MessageDelta | None = None
    text: str | None = None
    logprobs: ChunkLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None


class TokenDetails(msgspec.Struct):
    """Details of token counts."""

    cached_tokens: int | None = None
    reasoning_tokens: int | None = None


class ChunkUsage(msgspec.Struct):
    """Token counts."""

    prompt_tokens: int
    completion_tokens: int = 0
    prompt_tokens_details: TokenDetails | None = None
    completion_tokens_details: TokenDetails | None = None


class ErrorFields(msgspec.Struct):
    """Error of an answer."""

    message: str = ""
    param: str | None = None
    code: str | int | None = None


class Chunk(msgspec.Struct):
    """One event."""

    choices: list[ChunkChoice] | None = None
    usage: ChunkUsage | None = None
    error: ErrorFields | str | None = None


class ErrorBody(msgspec.Struct):
    """Body of an error response: OpenAI's object, or the message alone."""

    error: ErrorFields | str | None = None
    message: str | None = None
    detail: Any = None


decode_chunk = msgspec.json.Decoder(Chunk).decode
decode_error = msgspec.json.Decoder(ErrorBody).decode
