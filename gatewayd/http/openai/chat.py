"""``POST /v1/chat/completions``."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import msgspec

from gatewayd.catalogue.target import UpstreamTarget
from gatewayd.engines.api import EngineRequest
from gatewayd.errors import InvalidRequest
from gatewayd.http import body_threads
from gatewayd.http.openai.chat_parts_wire import ChatPartsWire
from gatewayd.http.openai.chat_prompt import chat_prompt, is_large_chat
from gatewayd.http.openai.chat_wire import ChatWire
from gatewayd.http.openai.generate import GenerationRoute, PreparedRequest, identity_of
from gatewayd.http.openai.prompt_logprobs import check_prompt_logprobs
from gatewayd.http.openai.relayed import prepare_relayed_chat
from gatewayd.http.openai.sampling import (
    choice_options,
    class_param_of,
    fit_max_tokens,
    priority_of,
    retention_of,
    salt_of,
    sampling_params,
)
from gatewayd.http.openai.wire import Identity, Wire
from gatewayd.http.schema.chat import ChatRequest
from gatewayd.http.services import Services
from gatewayd.pipeline.choice import ChoiceOptions
from gatewayd.text.output_parts import Parsers
from gatewayd.text.tokenizer import Tokenizer

_PROMPT_END = 16
"""Last tokens of a prompt, in which templates open the reasoning."""


class ChatRoute(GenerationRoute[ChatRequest]):
    """Route of chat completions."""

    label = "/v1/chat/completions"
    table = ChatRequest

    async def prepare(
        self, services: Services, request: ChatRequest, request_id: str
    ) -> PreparedRequest:
        """Render and encode the messages, and validate rules across fields."""
        return await prepare_chat(services, request, request_id)


async def prepare_chat(
    services: Services,
    request: ChatRequest,
    request_id: str,
    *,
    wire: Callable[[Identity, Tokenizer | None, int], Wire] | None = None,
) -> PreparedRequest:
    """Prepare a chat request, for this route and others with their own response formats.

    Args:
        services: of the request's model.
        request: validated against its schema.
        request_id: the gateway's.
        wire: creates the response's encoder from the identity, the tokenizer and the number of
            choices; None for chat completions.

    Raises:
        GatewayError: the request is refused.
    """
    # Cheap checks, before the prompt is rendered and encoded.
    _check_fields(request)
    check_prompt_logprobs(request)
    asked, param = request.max_completion_tokens, "max_completion_tokens"
    if asked is None:
        asked, param = request.max_tokens, "max_tokens"
    # The schema allows 0, by which text completions score a prompt.
    if asked == 0:
        raise InvalidRequest(f"{param} is 0; the minimum is 1", param=param)
    if isinstance(services.target, UpstreamTarget):
        relay = partial(prepare_relayed_chat, services.target, request, request_id, wire=wire)
        is_large = is_large_chat(request, services.limits.thread_bytes)
        return await body_threads.run_in_thread(relay) if is_large else relay()
    name = request.model or services.target.name
    model = await services.loaded_model()
    prompt, offer, continued, ignored = await chat_prompt(
        services, request, limit=model.max_model_len
    )
    max_tokens = fit_max_tokens(
        asked, None, len(prompt), model.max_model_len, prompt_param="messages", param=param
    )
    constraint, parsers, tokenizer = offer.constraint, services.parsers, services.text.tokenizer
    # For reasoning parsers only: the template may have opened the reasoning.
    prompt_end = tokenizer.decode(prompt[-_PROMPT_END:]) if parsers.reasoning else ""
    params = sampling_params(
        request,
        model,
        max_tokens=max_tokens,
        logprobs=(request.top_logprobs or 0) if request.logprobs else None,
        prompt_logprobs=request.prompt_logprobs,
        guide=await services.check_guide(constraint),
        behind=parsers.bounds(prompt_end, continues=continued is not None),
        may_be_shorter=asked is None,
    )
    n = request.n or 1
    identity = identity_of(
        request, "chatcmpl-", request_id, name, with_logprobs=bool(request.logprobs)
    )
    engine_request = EngineRequest(
        request_id=request_id,
        prompt=prompt,
        params=params,
        salt=salt_of(request),
        cache_key=request.prompt_cache_key or "",
        priority=priority_of(request),
        class_param=class_param_of(request),
        length_param=param,
        retention=retention_of(request),
        retry_started=not request.stream,
        guide_param=constraint and constraint.param,
    )
    options = choice_options(
        request,
        tokenizer,
        continues=continued is not None,
        prefix=continued or "" if request.echo else "",
    )
    readers = parsers.readers(
        offer.tools,
        prompt_end=prompt_end,
        most_calls=offer.most_calls,
        finds_reasoning=request.separate_reasoning is not False,
        keeps_reasoning=request.include_reasoning is not False,
    )
    if readers is not None:
        options = _read(options, readers, tokenizer, request, continues=continued is not None)
    if wire is None and readers is not None:
        wire = partial(ChatPartsWire, call_id=parsers.call_id, is_legacy=bool(request.functions))
    return PreparedRequest(
        requests=[engine_request],
        num_choices=n,
        options=options,
        wire=(wire or ChatWire)(identity, tokenizer, n),
        identity=identity,
        ignored=ignored,
    )


def _read(
    options: ChoiceOptions,
    readers: Parsers,
    tokenizer: Tokenizer,
    request: ChatRequest,
    *,
    continues: bool,
) -> ChoiceOptions:
    """Add output parsers to the options, with their special tokens visible in the text."""
    detokenizer = partial(
        tokenizer.detokenizer,
        skip_special=request.skip_special_tokens,
        shown=readers.marks,
        continues=continues,
    )
    return msgspec.structs.replace(options, parsers=readers, detokenizer=detokenizer)


def _check_fields(request: ChatRequest) -> None:
    if request.top_logprobs and not request.logprobs:
        raise InvalidRequest("top_logprobs needs logprobs to be true", param="top_logprobs")
    if request.stream_options is not None and not request.stream:
        raise InvalidRequest("stream_options needs stream to be true", param="stream_options")
