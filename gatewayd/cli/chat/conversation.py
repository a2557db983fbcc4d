"""Multi-turn conversation with a model.

A turn that fails leaves the history unchanged; one that the user interrupts keeps the partial
answer.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from gatewayd.cli.client.api import ApiClient
from gatewayd.cli.client.wire import AnswerUsage


@dataclass(frozen=True, slots=True)
class Settings:
    """Request settings; None uses the server's default.

    Attributes:
        url: base URL of the server.
        model: name of the model.
        api_key: sent as a bearer token.
        temperature: sampling temperature; 0 is greedy.
        max_tokens: limit of each answer.
    """

    url: str
    model: str
    api_key: str | None = None
    temperature: float | None = None
    max_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class ChatTurn:
    """Measurements of one answer.

    Attributes:
        prompt_tokens: of the whole conversation, as the server counted.
        cached_tokens: of those, tokens found in the prefix cache.
        output_tokens: of the answer.
        first_seconds: time to first token.
        seconds: time to the end of the answer.
        finish_reason: as reported by the server; None if it was not.
    """

    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    first_seconds: float
    seconds: float
    finish_reason: str | None

    @property
    def tokens_per_second(self) -> float:
        """Decoding speed after the first token; 0 for fewer than two tokens."""
        rest = self.seconds - self.first_seconds
        return (self.output_tokens - 1) / rest if self.output_tokens > 1 and rest > 0 else 0.0


@dataclass(slots=True)
class Conversation:
    """Conversation with one model: settings, message history and measurements."""

    settings: Settings
    system: str | None = None
    messages: list[dict[str, str]] = field(default_factory=list)
    turns: list[ChatTurn] = field(default_factory=list)

    def reset(self) -> None:
        """Clear the message history; the system message and the measurements stay."""
        self.messages.clear()

    async def ask(self, text: str, show: Callable[[str], None]) -> ChatTurn:
        """Send a user message and stream the answer.

        Args:
            text: the user message.
            show: called with each new piece of the answer.

        Raises:
            ApiError: the request failed; the history is unchanged.
            asyncio.CancelledError: interrupted; the partial answer is added to the history.
        """
        question = {"role": "user", "content": text}
        pieces: list[str] = []
        begin = time.perf_counter()
        first = finish = None
        usage = AnswerUsage()
        settings = self.settings
        try:
            async with (
                ApiClient(settings.url, api_key=settings.api_key) as client,
                aclosing(client.stream("/v1/chat/completions", self._body(question))) as stream,
            ):
                async for chunks in stream:
                    for chunk in chunks:
                        # Sent in a last chunk without choices.
                        usage = chunk.usage or usage
                        for choice in chunk.choices:
                            finish = choice.finish_reason or finish
                            if choice.has_output and first is None:
                                first = time.perf_counter()
                            if choice.content:
                                pieces.append(choice.content)
                                show(choice.content)
        except asyncio.CancelledError:
            self._append_turn(question, "".join(pieces))
            raise
        end = time.perf_counter()
        self._append_turn(question, "".join(pieces))
        turn = ChatTurn(
            prompt_tokens=usage.prompt_tokens,
            cached_tokens=usage.cached_tokens,
            # Without a reported usage, an event counts as a token.
            output_tokens=usage.completion_tokens or len(pieces),
            first_seconds=(first or end) - begin,
            seconds=end - begin,
            finish_reason=finish,
        )
        self.turns.append(turn)
        return turn

    def _append_turn(self, question: dict[str, str], answer: str) -> None:
        self.messages += [question, {"role": "assistant", "content": answer}]

    def _body(self, question: dict[str, str]) -> dict[str, Any]:
        system = [{"role": "system", "content": self.system}] if self.system else []
        body: dict[str, Any] = {
            "model": self.settings.model,
            "messages": [*system, *self.messages, question],
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self.settings.temperature is not None:
            body["temperature"] = self.settings.temperature
        if self.settings.max_tokens is not None:
            body["max_tokens"] = self.settings.max_tokens
        return body
