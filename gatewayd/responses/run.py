"""One response while it is generated: over the same pipeline as a chat completion."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from gatewayd.errors import ContextLengthExceeded, GatewayError
from gatewayd.http.answer import Answer
from gatewayd.http.chat import prepare_chat
from gatewayd.http.generate import Prepared
from gatewayd.http.parse import check
from gatewayd.http.schema.chat import ChatRequest
from gatewayd.http.schema.responses import ResponseRequest
from gatewayd.http.services import Services
from gatewayd.pipeline import Work
from gatewayd.responses.body import chat_body, ended, failed, in_our_words
from gatewayd.responses.items import messages
from gatewayd.responses.output import Event, Output
from gatewayd.responses.truncation import begun_at, starts
from gatewayd_hooks.protocols import Refusal

LABEL = "/v1/responses"


async def begin(
    services: Services,
    request: ResponseRequest,
    conversation: list[dict[str, Any]],
    request_id: str,
    arrival: float,
) -> Answer:
    """Send it to the engines.

    Args:
        services: of the gateway.
        request: what was asked for.
        conversation: all items before the answer.
        request_id: the gateway's.
        arrival: when the request came.

    Raises:
        GatewayError: it is refused.
    """
    try:
        prepared = await _prepare(services, request, conversation, request_id)
    except GatewayError as error:
        raise in_our_words(error) from error
    work = Work(
        request_id=request_id,
        endpoint=LABEL,
        requests=prepared.requests,
        num_choices=1,
        options=prepared.options,
        arrival=arrival,
    )
    generation = services.pipeline.start(work)
    tokenizer, fleet = services.text.tokenizer, services.fleet
    return Answer(generation, prepared.identity, tokenizer, lambda: fleet.room)


async def _prepare(
    services: Services,
    request: ResponseRequest,
    conversation: list[dict[str, Any]],
    request_id: str,
) -> Prepared:
    """The whole conversation, or with ``truncation`` the most of it that fits the context."""

    async def attempt(items: list[dict[str, Any]]) -> Prepared:
        body = chat_body(request, messages(request.instructions, items))
        checked, _ = await asyncio.to_thread(check, ChatRequest, body)
        return await prepare_chat(services, checked, request_id)

    if request.truncation != "auto":
        return await attempt(conversation)
    first, *shorter = starts(conversation)
    try:
        return await attempt(begun_at(conversation, first))
    except ContextLengthExceeded:
        if not shorter:
            raise
    found = await attempt(begun_at(conversation, shorter[-1]))
    low, high = 0, len(shorter) - 1
    while low < high:
        middle = (low + high) // 2
        try:
            found = await attempt(begun_at(conversation, shorter[middle]))
            high = middle
        except ContextLengthExceeded:
            low = middle + 1
    return found


class Progress:
    """A response as it comes.

    Attributes:
        body: the response object as it is now.
    """

    def __init__(self, answer: Answer, body: dict[str, Any]) -> None:
        self.body = body
        self._answer = answer
        self._output = Output()

    async def events(self) -> AsyncIterator[Event]:
        """What happens, without numbers, up to the last item; ``body`` is whole then.

        Raises:
            Refusal: it failed; ``body`` says so.
        """
        reason: str | None = None
        try:
            async for delta in self._answer:
                reason = delta.finish_reason or reason
                for event in self._output.take(delta.parts, delta.logprobs):
                    yield event
        except Refusal as refusal:
            self._output.break_off()
            self.body = {**failed(self.body, refusal.message), "output": self._output.items}
            raise
        is_cut = reason == "length"
        for event in self._output.end("incomplete" if is_cut else "completed"):
            yield event
        self.body = ended(
            self.body,
            self._output.items,
            self._answer.usage,
            self._answer.reasoning_tokens,
            is_cut=is_cut,
        )

    async def finish(self) -> None:
        """Go to the end.

        Raises:
            Refusal: it failed.
        """
        async for _ in self.events():
            pass
