"""Fields of OpenAI responses that the client reads; all others are skipped when decoding."""

from __future__ import annotations

from typing import Any

import msgspec


class AnswerDelta(msgspec.Struct, gc=False):
    """Delta of a streamed chat message."""

    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[Any] | None = None


class AnswerChoice(msgspec.Struct, gc=False):
    """Choice of a streamed response: ``text`` of a completion or ``delta`` of a chat."""

    text: str | None = None
    delta: AnswerDelta | None = None
    finish_reason: str | None = None

    @property
    def content(self) -> str:
        """Text of the choice; empty if the event has none."""
        return self.text or (self.delta.content if self.delta else None) or ""

    @property
    def has_output(self) -> bool:
        """Whether the event has any model output: text, reasoning or tool calls."""
        delta = self.delta
        return bool(
            self.text
            or (delta and (delta.content or delta.reasoning or delta.reasoning_content))
            or (delta and delta.tool_calls)
        )


class CachedTokens(msgspec.Struct, gc=False):
    """Number of prompt tokens found in the server's prefix cache."""

    cached_tokens: int | None = None


class AnswerUsage(msgspec.Struct, gc=False):
    """Token counts reported by the server."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: CachedTokens | None = None

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens found in the prefix cache; 0 if the server does not report them."""
        return (self.prompt_tokens_details and self.prompt_tokens_details.cached_tokens) or 0


class Chunk(msgspec.Struct, gc=False):
    """Event of a streamed response."""

    choices: list[AnswerChoice] = []
    usage: AnswerUsage | None = None
    error: Any = None


class ModelCard(msgspec.Struct):
    """Entry of ``/v1/models``."""

    id: str


class ModelNames(msgspec.Struct):
    """Response of ``/v1/models``."""

    data: list[ModelCard]


class TokenList(msgspec.Struct):
    """Response of ``/tokenize``."""

    tokens: list[int]


decode_chunk = msgspec.json.Decoder(Chunk).decode
