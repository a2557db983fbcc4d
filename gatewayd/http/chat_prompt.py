"""The prompt that a conversation makes: for an answer, or to be counted at any length."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from gatewayd.errors import InvalidRequest
from gatewayd.http.asgi import encode_json
from gatewayd.http.conversation import arguments_of, continued_of, for_template
from gatewayd.http.schema.chat import ChatRequest
from gatewayd.http.schema.messages import Message
from gatewayd.http.services import Services
from gatewayd.http.tools import Offer, offer_of

MAX_COUNTED = 1 << 20
"""Characters: two seconds of one of the threads that encode everybody's prompts."""
_NO_LIMIT = 2**63


class ChatPrompt(NamedTuple):
    """What the engine is given, and what follows for its answer.

    Attributes:
        token_ids: of the whole prompt.
        offer: what the model may call.
        continued: the text that the answer goes on with; None for an answer of its own.
        ignored: fields that ask for what the chat template does not look at.
    """

    token_ids: list[int]
    offer: Offer
    continued: str | None
    ignored: Sequence[str]


async def chat_prompt(services: Services, request: ChatRequest, *, limit: int) -> ChatPrompt:
    """Render and encode a conversation.

    Args:
        services: of the gateway.
        request: checked against its table.
        limit: tokens of the context, to refuse hopeless lengths without encoding them.

    Raises:
        GatewayError: it is refused.
    """
    parsers, template = services.parsers, services.text.template
    continued = continued_of(request)
    takes_tools = template is not None and template.takes("tools")
    offer = offer_of(request, parsers, takes_tools=takes_tools)
    arguments = arguments_of(request, template)
    token_ids = await services.text.encode_chat(
        for_template(request.messages, parsers),
        limit=limit,
        tools=offer.shown,
        add_generation_prompt=request.add_generation_prompt is not False and continued is None,
        is_continued=continued is not None,
        arguments=arguments.taken,
    )
    return ChatPrompt(token_ids, offer, continued, arguments.ignored)


async def counted_prompt(services: Services, request: ChatRequest) -> ChatPrompt:
    """The same of a conversation that nobody answers: it may be longer than the context.

    Raises:
        GatewayError: it is refused, or longer than ``MAX_COUNTED``.
    """
    services.check_model(request.model)
    await services.loaded_model()
    check_counted(_length(request), "messages")
    return await chat_prompt(services, request, limit=_NO_LIMIT)


def check_counted(length: int, param: str) -> None:
    """Refuse texts that would keep others waiting.

    Raises:
        InvalidRequest: there are more characters than the maximum.
    """
    if length > MAX_COUNTED:
        raise InvalidRequest(
            f"the text has {length} characters; the maximum is {MAX_COUNTED}: send it in parts",
            param=param,
        )


def _length(request: ChatRequest) -> int:
    functions = [*[tool.function for tool in request.tools or ()], *(request.functions or ())]
    told = [len(one.description or "") for one in functions]
    schemas = [len(encode_json(one.parameters)) for one in functions if one.parameters]
    return sum([*told, *schemas, *[_characters(message) for message in request.messages]])


def _characters(message: Message) -> int:
    calls = [len(call.function.arguments) for call in message.tool_calls or ()]
    return len(message.text) + len(message.thought or "") + sum(calls)
