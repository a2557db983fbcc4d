"""A conversation: what was said, and one turn more.

A turn that fails leaves no trace; one that the user interrupts keeps what was written so far.
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
    """How to ask; None leaves a choice to the server.

    Attributes:
        url: the server.
        model: its name.
        api_key: sent as a bearer token.
        temperature: 0 is greedy.
        max_tokens: of each answer.
    """

    url: str
    model: str
    api_key: str | None = None
    temperature: float | None = None
    max_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class ChatTurn:
    """One answer's figures.

    Attributes:
        prompt_tokens: of the whole conversation, as the server counted.
        cached_tokens: of those, how many it did not compute again.
        output_tokens: of the answer.
        first_seconds: until it began.
        seconds: until it ended.
        finish_reason: why it ended; None if the server did not say.
    """

    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    first_seconds: float
    seconds: float
    finish_reason: str | None

    @property
    def tokens_per_second(self) -> float:
        """After the first token; 0 when there were not two."""
        rest = self.seconds - self.first_seconds
        return (self.output_tokens - 1) / rest if self.output_tokens > 1 and rest > 0 else 0.0


@dataclass(slots=True)
class Conversation:
    """What was said to one model."""

    settings: Settings
    system: str | None = None
    messages: list[dict[str, str]] = field(default_factory=list)
    turns: list[ChatTurn] = field(default_factory=list)

    def reset(self) -> None:
        """Forget what was said; the system message and the figures stay."""
        self.messages.clear()

    async def ask(self, text: str, show: Callable[[str], None]) -> ChatTurn:
        """Say something and hear the answer.

        Args:
            text: what the user says.
            show: called with each new piece of the answer.

        Raises:
            ApiError: there is no answer; the conversation is as it was before.
            asyncio.CancelledError: interrupted; what was written so far is part of it.
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
                        usage = chunk.usage or usage
                        for choice in chunk.choices:
                            finish = choice.finish_reason or finish
                            if choice.has_output and first is None:
                                first = time.perf_counter()
                            if choice.content:
                                pieces.append(choice.content)
                                show(choice.content)
        except asyncio.CancelledError:
            self._remember(question, "".join(pieces))
            raise
        end = time.perf_counter()
        self._remember(question, "".join(pieces))
        turn = ChatTurn(
            prompt_tokens=usage.prompt_tokens,
            cached_tokens=usage.cached_tokens,
            output_tokens=usage.completion_tokens or len(pieces),
            first_seconds=(first or end) - begin,
            seconds=end - begin,
            finish_reason=finish,
        )
        self.turns.append(turn)
        return turn

    def _remember(self, question: dict[str, str], answer: str) -> None:
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
