"""The parts of OpenAI's answers that a client needs; everything else is skipped unread."""

from __future__ import annotations

from typing import Any

import msgspec


class AnswerDelta(msgspec.Struct, gc=False):
    """New parts of a chat message."""

    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[Any] | None = None


class AnswerChoice(msgspec.Struct, gc=False):
    """One choice of a streamed answer: ``text`` of a completion or ``delta`` of a chat."""

    text: str | None = None
    delta: AnswerDelta | None = None
    finish_reason: str | None = None

    @property
    def content(self) -> str:
        """The text to show; empty when the event carries none."""
        return self.text or (self.delta.content if self.delta else None) or ""

    @property
    def has_output(self) -> bool:
        """Whether the event carries anything that the model wrote."""
        delta = self.delta
        return bool(
            self.text
            or (delta and (delta.content or delta.reasoning or delta.reasoning_content))
            or (delta and delta.tool_calls)
        )


class CachedTokens(msgspec.Struct, gc=False):
    """How much of a prompt came from the server's cache."""

    cached_tokens: int | None = None


class AnswerUsage(msgspec.Struct, gc=False):
    """Tokens as the server counted them."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: CachedTokens | None = None

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens that the server did not compute again; 0 when it does not say."""
        return (self.prompt_tokens_details and self.prompt_tokens_details.cached_tokens) or 0


class Chunk(msgspec.Struct, gc=False):
    """One event of a stream."""

    choices: list[AnswerChoice] = []
    usage: AnswerUsage | None = None
    error: Any = None


class ModelCard(msgspec.Struct):
    """One entry of ``/v1/models``."""

    id: str


class ModelNames(msgspec.Struct):
    """The answer of ``/v1/models``."""

    data: list[ModelCard]


class TokenList(msgspec.Struct):
    """The answer of ``/tokenize``."""

    tokens: list[int]


decode_chunk = msgspec.json.Decoder(Chunk).decode
