"""Prompts of chat requests: for generation, or for counting tokens at any length."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from gatewayd.errors import ContextLengthExceeded, InvalidRequest
from gatewayd.http import body_threads
from gatewayd.http.asgi import encode_json
from gatewayd.http.openai.conversation import arguments_of, continued_of, for_template
from gatewayd.http.openai.tools import ToolOffer, tool_offer
from gatewayd.http.schema.chat import ChatRequest
from gatewayd.http.schema.messages import ChatMessage
from gatewayd.http.services import Services
from gatewayd.text.text_model import ChatText

_LEAST_COUNTED, _MOST_COUNTED = 128 << 10, 1 << 20
_COUNTED_PER_TOKEN = 8
"""Characters per token: at most 0.5 s of the thread for long texts, and 220 MiB."""
_NO_LIMIT = 2**63
_ENTRY = 256
"""Overhead of a message, part or call, which may be empty, in characters."""


class ChatPrompt(NamedTuple):
    """Prompt of a chat, with settings that apply to its response.

    Attributes:
        token_ids: of the whole prompt.
        offer: tools that the model may call.
        continued: text of the final message to continue; None for a new message.
        ignored: fields that the chat template does not use.
    """

    token_ids: list[int]
    offer: ToolOffer
    continued: str | None
    ignored: Sequence[str]


async def chat_prompt(services: Services, request: ChatRequest, *, limit: int) -> ChatPrompt:
    """Render and encode a conversation; a large one in a thread.

    Args:
        services: of the request's model.
        request: validated against its schema.
        limit: context length in tokens, to refuse far longer prompts without encoding them.

    Raises:
        GatewayError: the request is refused.
    """
    if not is_large_chat(request, services.limits.thread_bytes):
        text, prompt = _rendered(services, request, limit)
        token_ids = await services.text.tokenizer.run_by_size(text.size, text.encode)
        return prompt._replace(token_ids=token_ids)

    def render() -> tuple[ChatText | None, ChatPrompt]:
        _check_fits(request, limit, services.text.tokenizer.longest_token)
        text, prompt = _rendered(services, request, limit)
        if not text.is_marked:
            return text, prompt
        # Encode here, so that the conversation it refers to is released in this thread.
        return None, prompt._replace(token_ids=text.encode())

    unencoded, prompt = await body_threads.run_in_thread(render)
    if unencoded is None:
        return prompt
    token_ids = await services.text.tokenizer.run_by_size(unencoded.size, unencoded.encode)
    return prompt._replace(token_ids=token_ids)


def _rendered(services: Services, request: ChatRequest, limit: int) -> tuple[ChatText, ChatPrompt]:
    """Render the prompt's text; its token ids are left empty."""
    parsers, template = services.parsers, services.text.template
    continued = continued_of(request)
    takes_tools = template is not None and template.uses_variable("tools")
    offer = tool_offer(request, parsers, takes_tools=takes_tools)
    arguments = arguments_of(request, template)
    text = services.text.render_chat(
        for_template(request.messages, parsers),
        limit=limit,
        tools=offer.shown,
        add_generation_prompt=request.add_generation_prompt is not False and continued is None,
        is_continued=continued is not None,
        arguments=arguments.taken,
    )
    return text, ChatPrompt([], offer, continued, arguments.ignored)


def is_large_chat(request: ChatRequest, most: int) -> bool:
    """Whether a request has more characters than can be processed on the event loop."""
    length = entries = 0
    for message in request.messages:
        content = message.content
        if isinstance(content, str):
            length += len(content) + _ENTRY
        elif content is not None:
            entries += len(content)
        if message.role == "assistant":
            entries += 1 + len(message.tool_calls or ())
    if entries * _ENTRY > most or length > most:
        return True  # without visiting each part and call, of which there may be very many
    # The length of plain text was counted above.
    is_plain = not (entries or request.tools or request.functions or request.chat_template_kwargs)
    return not is_plain and entries * _ENTRY + _length(request) > most


def _check_fits(request: ChatRequest, limit: int, longest_token: int) -> None:
    """Refuse far too long conversations before arguments are parsed and templates rendered.

    Raises:
        ContextLengthExceeded: there are more characters than the context could hold if all tokens
            were as long as the longest.
    """
    length, most = sum(map(_characters, request.messages)), limit * longest_token
    if length > most:
        raise ContextLengthExceeded(
            f"messages have {length} characters; the model's context of {limit} tokens holds at "
            f"most {most}: shorten the prompt",
            param="messages",
        )


async def counted_prompt(services: Services, request: ChatRequest) -> ChatPrompt:
    """Render and encode a conversation to count its tokens; it may exceed the context.

    Raises:
        GatewayError: it is refused, or longer than ``most_counted``.
    """
    most = most_counted((await services.loaded_model()).max_model_len)
    if is_large_chat(request, services.limits.thread_bytes):
        # Measuring encodes schemas, which takes time for a large request.
        await body_threads.run_in_thread(lambda: check_counted(_length(request), most, "messages"))
    else:
        check_counted(_length(request), most, "messages")
    return await chat_prompt(services, request, limit=_NO_LIMIT)


def most_counted(max_model_len: int) -> int:
    """Return the maximum characters for token counting, somewhat above the context's capacity."""
    return min(_MOST_COUNTED, max(_LEAST_COUNTED, _COUNTED_PER_TOKEN * max_model_len))


def check_counted(length: int, most: int, param: str) -> None:
    """Check the length of a text whose tokens are counted.

    Raises:
        InvalidRequest: there are more characters than the maximum.
    """
    if length > most:
        raise InvalidRequest(
            f"the text has {length} characters; the maximum is {most}: send it in parts",
            param=param,
        )


def _length(request: ChatRequest) -> int:
    functions = [*[tool.function for tool in request.tools or ()], *(request.functions or ())]
    descriptions = [len(one.description or "") for one in functions]
    schemas = [len(encode_json(one.parameters)) for one in functions if one.parameters]
    if request.chat_template_kwargs:
        schemas.append(len(encode_json(request.chat_template_kwargs)))
    return sum([*descriptions, *schemas, *[_characters(message) for message in request.messages]])


def _characters(message: ChatMessage) -> int:
    calls = [len(call.function.arguments) for call in message.tool_calls or ()]
    return len(message.text) + len(message.reasoning_text or "") + sum(calls)
