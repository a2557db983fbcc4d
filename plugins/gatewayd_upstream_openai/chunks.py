"""Chunks of a streamed answer: those fields that are used, by their types."""

from __future__ import annotations

from typing import Any

import msgspec


class FunctionDelta(msgspec.Struct):
    """Function of a call, in pieces."""

    name: str | None = None
    arguments: str | None = None


class CallDelta(msgspec.Struct):
    """Piece of a tool call."""

    index: int | None = None
    id: str | None = None
    function: FunctionDelta | None = None


class ChunkDelta(msgspec.Struct):
    """Piece of a message."""

    content: str | None = None
    refusal: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[CallDelta] | None = None
    function_call: FunctionDelta | None = None


class ChunkAlternative(msgspec.Struct):
    """Alternative of a token."""

    token: str
    logprob: float
    bytes: list[int] | None = None


class ChunkToken(ChunkAlternative):
    """Token of the answer."""

    top_logprobs: list[ChunkAlternative] = []


class ChunkLogprobs(msgspec.Struct):
    """Log-probabilities of a piece: of a chat by token, of a text completion in columns."""

    content: list[ChunkToken] | None = None
    tokens: list[str] = []
    token_logprobs: list[float | None] = []
    top_logprobs: list[dict[str, float] | None] | None = None


class ChunkChoice(msgspec.Struct):
    """Piece of one choice."""

    index: int = 0
    delta: ChunkDelta | None = None
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


class OpenAiErrorFields(msgspec.Struct):
    """Error of an answer."""

    message: str = ""
    param: str | None = None
    code: str | int | None = None


class StreamChunk(msgspec.Struct):
    """One event."""

    choices: list[ChunkChoice] | None = None
    usage: ChunkUsage | None = None
    error: OpenAiErrorFields | str | None = None


class OpenAiErrorBody(msgspec.Struct):
    """Body of an error response: OpenAI's object, or the message alone."""

    error: OpenAiErrorFields | str | None = None
    message: str | None = None
    detail: Any = None


decode_chunk = msgspec.json.Decoder(StreamChunk).decode
decode_error = msgspec.json.Decoder(OpenAiErrorBody).decode
