"""Generation of one response, over the same pipeline as chat completions."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any, NamedTuple

from gatewayd.errors import GatewayError
from gatewayd.http import body_threads
from gatewayd.http.openai.chat import prepare_chat
from gatewayd.http.openai.chat_prompt import counted_prompt
from gatewayd.http.openai.generate import PreparedRequest
from gatewayd.http.openai.sampling import fit_max_tokens
from gatewayd.http.parse import check
from gatewayd.http.protocols.answer import ProtocolAnswer
from gatewayd.http.routing.attempts import start_generation
from gatewayd.http.routing.generation_call import GenerationCall
from gatewayd.http.schema.chat import ChatRequest
from gatewayd.http.schema.responses import InputTokensRequest, ResponseRequest
from gatewayd.http.services import Services
from gatewayd.resources.responses.conversations import Conversations, needs_store
from gatewayd.resources.responses.outline import outline_of_response
from gatewayd.resources.responses.output import Event, Output
from gatewayd.resources.responses.previous_responses import TruncationPoint
from gatewayd.resources.responses.records import StoredResponse
from gatewayd.resources.responses.response_object import (
    chat_body,
    completed_response,
    failed_response,
    input_body,
    with_response_fields,
)
from gatewayd.resources.responses.truncation import most_that_fits
from gatewayd.tenants.principal import Principal
from gatewayd_hooks.protocols import RequestRefusal

LABEL = "/v1/responses"


class StartedResponse(NamedTuple):
    """A response that was submitted to the engines.

    Attributes:
        answer: its output.
        given: items of the request, as they are stored.
        chain_cut: begin of its truncated conversation; None if it is whole.
    """

    answer: ProtocolAnswer
    given: list[dict[str, Any]]
    chain_cut: TruncationPoint | None


async def start_response(
    services: Services,
    conversations: Conversations,
    request: ResponseRequest,
    request_id: str,
    arrival: float,
    principal: Principal,
) -> StartedResponse:
    """Submit a response to the engines.

    Args:
        services: services of the gateway.
        conversations: loads stored conversations.
        request: the request.
        request_id: id given by the gateway.
        arrival: arrival time of the request.
        principal: sender of the request.

    Raises:
        GatewayError: the request is refused.
    """
    ready: list[_Ready] = []

    async def prepare(services: Services) -> PreparedRequest:
        try:
            made = await _prepare(services, conversations, request, request_id, principal.tenant)
        except GatewayError as error:
            raise with_response_fields(error) from error
        ready.append(made)
        return made.prepared

    services, prepared, generation = await start_generation(
        services,
        GenerationCall(
            model=request.model,
            request_id=request_id,
            endpoint=LABEL,
            arrival=arrival,
            principal=principal,
            prepare=prepare,
            outline=lambda: outline_of_response(request, request_id, principal),
            queue_timeout=request.queue_timeout,
        ),
    )
    tokenizer, fleet = services.tokenizer, services.fleet
    answer = ProtocolAnswer(generation, prepared.identity, tokenizer, lambda: fleet.room)
    # A route may have prepared it for several models, with different parts of the conversation.
    used = next(one for one in ready if one.prepared is prepared)
    return StartedResponse(answer, used.given, used.chain_cut)


class _Ready(NamedTuple):
    prepared: PreparedRequest
    given: list[dict[str, Any]]
    chain_cut: TruncationPoint | None


async def _prepare(
    services: Services,
    conversations: Conversations,
    request: ResponseRequest,
    request_id: str,
    tenant: str,
) -> _Ready:
    """Prepare the whole conversation, or with ``truncation`` the longest part that fits."""

    async def attempt(items: list[dict[str, Any]]) -> PreparedRequest:
        chat = await _chat_of(lambda: chat_body(request, items))
        return await prepare_chat(services, chat, request_id)

    if needs_store(request):
        await services.wait_loaded()  # may take long: wait before acquiring a slot
    async with conversations.loaded(tenant, request) as asked:
        if request.truncation != "auto":
            return _Ready(await attempt(asked.conversation), asked.given, None)
        fitting = await most_that_fits(asked.conversation, attempt)
        return _Ready(fitting.made, asked.given, asked.cut_at(fitting.start))


async def count(
    services: Services, conversations: Conversations, request: InputTokensRequest, tenant: str
) -> int:
    """Count the tokens of the prompt of a response; they may exceed the context.

    Args:
        services: services of the gateway.
        conversations: loads stored conversations.
        request: the request.
        tenant: owner of the conversations.

    Raises:
        GatewayError: the request is refused.
    """

    async def attempt(items: list[dict[str, Any]]) -> int:
        chat = await _chat_of(lambda: {"model": model, **input_body(request, items)})
        return len((await counted_prompt(services, chat)).token_ids)

    async def fitting(items: list[dict[str, Any]]) -> int:
        num_tokens, limit = await attempt(items), (await services.loaded_model()).max_model_len
        fit_max_tokens(None, None, num_tokens, limit, prompt_param="messages")
        return num_tokens

    services = services.serving(request.model)
    if needs_store(request):
        await services.loaded_model()
    async with conversations.loaded(tenant, request) as asked:
        model = request.model or services.name
        try:
            if request.truncation != "auto":
                return await attempt(asked.conversation)
            return (await most_that_fits(asked.conversation, fitting)).made
        except GatewayError as error:
            raise with_response_fields(error) from error


async def _chat_of(make: Callable[[], dict[str, Any]]) -> ChatRequest:
    # Validating a long conversation would block the event loop.
    return (await body_threads.run_in_thread(lambda: check(ChatRequest, make())))[0]


class ResponseProgress:
    """Progress of a response.

    Attributes:
        body: the present response object.

    Args:
        answer: output of the engines.
        body: the response object at its start.
        chain_cut: begin of its truncated conversation; None if it is whole.
    """

    def __init__(
        self, answer: ProtocolAnswer, body: dict[str, Any], chain_cut: TruncationPoint | None = None
    ) -> None:
        self.body = body
        self._chain_cut = chain_cut
        self._answer = answer
        self._output = Output()

    async def events(self) -> AsyncIterator[Event]:
        """Yield events without numbers, up to the last item; ``body`` is complete then.

        Raises:
            RequestRefusal: it failed; ``body`` has the error.
        """
        reason: str | None = None
        try:
            async for delta in self._answer:
                # The last delta may come without one.
                reason = delta.finish_reason or reason
                for event in self._output.add_parts(delta.parts, delta.logprobs):
                    yield event
        except RequestRefusal as refusal:
            self.fail(refusal.message)
            raise
        is_cut = reason == "length"
        # Items close before the body is built, which has their final texts.
        for event in self._output.end("incomplete" if is_cut else "completed"):
            yield event
        self.body = completed_response(
            self.body,
            self._output.items,
            self._answer.usage,
            self._answer.reasoning_tokens,
            is_cut=is_cut,
        )

    def kept(self) -> StoredResponse:
        """The response with its delta boundaries, to be stored."""
        return StoredResponse(self.body, self._output.cuts, self._output.is_broken, self._chain_cut)

    def cancel(self) -> None:
        """End as cancelled, with the output so far."""
        self._output.leave_incomplete()
        self.body = {**self.body, "status": "cancelled", "output": self._output.items}

    def fail(self, message: str) -> None:
        """End as failed, with the output so far."""
        self._output.leave_incomplete()
        self.body = {**failed_response(self.body, message), "output": self._output.items}

    async def finish(self) -> None:
        """Run to the end.

        Raises:
            RequestRefusal: it failed.
        """
        async for _ in self.events():
            pass
