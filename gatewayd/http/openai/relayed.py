"""Preparation of requests to upstreams: the client's fields, checked, in OpenAI's format."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal

from gatewayd.catalogue.target import UpstreamTarget
from gatewayd.engines.api import EngineRequest, Relay
from gatewayd.errors import InvalidRequest, UnsupportedByModel
from gatewayd.http.asgi import encode_json
from gatewayd.http.openai.chat_parts_wire import ChatPartsWire
from gatewayd.http.openai.completion_wire import CompletionWire
from gatewayd.http.openai.generate import PreparedRequest, identity_of
from gatewayd.http.openai.sampling import class_param_of, priority_of
from gatewayd.http.openai.wire import Identity, Wire
from gatewayd.http.schema.chat import ChatRequest
from gatewayd.http.schema.completion import CompletionRequest
from gatewayd.http.schema.generation import GenerationTable
from gatewayd.http.schema.messages import ChatMessage
from gatewayd.pipeline.choice import ChoiceOptions
from gatewayd.text.detokenizer import NoDetokenizer
from gatewayd.text.tokenizer import Tokenizer
from gatewayd.upstreams.counting import BYTES_PER_TOKEN
from gatewayd_engine.process.messages import SamplingParams
from gatewayd_hooks.requests.tables import Ignored, Noted, support_of
from gatewayd_hooks.upstreams import UpstreamCall

_OURS = frozenset(
    (
        *("model", "messages", "prompt", "stream", "stream_options", "echo"),
        *("priority", "service_tier", "queue_timeout", "kv_retention", "cache_salt"),
        *("prompt_cache_key", "prompt_cache_retention", "include_reasoning", "best_of"),
    )
)
"""Fields that the gateway itself acts on."""
_NEED_TOKENS = ("logit_bias", "stop_token_ids", "return_token_ids", "prompt_logprobs")
_NEED_ENGINE = ("extra_args",)


def prepare_relayed_chat(
    target: UpstreamTarget,
    request: ChatRequest,
    request_id: str,
    *,
    wire: Callable[[Identity, Tokenizer | None, int], Wire] | None = None,
) -> PreparedRequest:
    """Prepare a chat for an upstream.

    Args:
        target: the upstream's model.
        request: validated against its schema, and by the rules across its fields.
        request_id: the gateway's.
        wire: as of ``prepare_chat``.

    Raises:
        InvalidRequest: a field needs the model's tokenizer or an engine.
    """
    _check_fields(target, request)
    if request.echo:
        raise _not_relayed(target, "echo")
    asked, param = request.max_completion_tokens, "max_completion_tokens"
    if asked is None:
        asked, param = request.max_tokens, "max_tokens"
    body = _fields(request)
    body["messages"] = [_message(message) for message in request.messages]
    n = request.n or 1
    identity = identity_of(
        request,
        "chatcmpl-",
        request_id,
        request.model or target.name,
        with_logprobs=bool(request.logprobs),
    )
    make = wire or partial(
        ChatPartsWire, call_id=lambda unique: unique, is_legacy=bool(request.functions)
    )
    logprobs = (request.top_logprobs or 0) if request.logprobs else None
    return PreparedRequest(
        requests=[
            _engine_request(
                target, request, "chat", body, request_id, asked, param, logprobs=logprobs
            )
        ],
        num_choices=n,
        options=_options(request, keeps_reasoning=request.include_reasoning is not False),
        wire=make(identity, None, n),
        identity=identity,
    )


def prepare_relayed_completion(
    target: UpstreamTarget,
    request: CompletionRequest,
    request_id: str,
    *,
    default_tokens: int | None,
) -> PreparedRequest:
    """Prepare a text completion for an upstream; each prompt is a request of its own.

    Args:
        target: the upstream's model.
        request: validated against its schema, and by the rules across its fields.
        request_id: the gateway's.
        default_tokens: maximum of tokens if the request sets none; None for the upstream's most.

    Raises:
        InvalidRequest: a field needs the model's tokenizer or an engine.
    """
    _check_fields(target, request)
    if request.max_tokens == 0 or (request.echo and request.logprobs is not None):
        raise _not_relayed(target, "echo")
    prompts = _texts(target, request.prompt)
    asked = request.max_tokens
    if asked is None:
        asked = target.max_output_tokens if default_tokens is None else default_tokens
    fields = {**_fields(request), "max_tokens": asked}
    identity = identity_of(
        request,
        "cmpl-",
        request_id,
        request.model or target.name,
        with_logprobs=request.logprobs is not None,
    )
    return PreparedRequest(
        requests=[
            _engine_request(
                target,
                request,
                "completion",
                {**fields, "prompt": prompt},
                request_id if len(prompts) == 1 else f"{request_id}-{at}",
                asked,
                "max_tokens",
                logprobs=request.logprobs,
            )
            for at, prompt in enumerate(prompts)
        ],
        num_choices=request.n or 1,
        options=_options(request),
        wire=CompletionWire(identity, None, prompts if request.echo else None),
        identity=identity,
    )


def _engine_request(
    target: UpstreamTarget,
    request: ChatRequest | CompletionRequest,
    kind: Literal["chat", "completion"],
    body: Mapping[str, Any],
    request_id: str,
    asked: int | None,
    param: str,
    *,
    logprobs: int | None,
) -> EngineRequest:
    # A token has at least one byte, and the encoding is longer than what a template adds.
    most = len(encode_json(body))
    return EngineRequest(
        request_id=request_id,
        prompt=range(most),
        params=SamplingParams(
            max_tokens=target.max_output_tokens if asked is None else asked, logprobs=logprobs
        ),
        priority=priority_of(request),
        class_param=class_param_of(request),
        length_param=param,
        relay=Relay(
            UpstreamCall(kind, {"model": target.model, **body}), -(-most // BYTES_PER_TOKEN)
        ),
    )


def _options(request: GenerationTable, *, keeps_reasoning: bool = True) -> ChoiceOptions:
    return ChoiceOptions(
        detokenizer=NoDetokenizer,
        wakes=bool(request.stream),
        keeps_reasoning=keeps_reasoning,
    )


def _fields(request: GenerationTable) -> dict[str, Any]:
    """Return the fields that the client has set and that an upstream acts on."""
    table = type(request)
    passed = {
        name
        for name in request.model_fields_set
        if name not in _OURS and not isinstance(support_of(table, name), Noted | Ignored)
    }
    found = request.model_dump(mode="json", by_alias=True, include=passed, exclude_unset=True)
    # Of the request alone: within schemas null has a meaning.
    return {name: value for name, value in found.items() if value is not None}


def _message(message: ChatMessage) -> dict[str, Any]:
    shown = message.model_dump(mode="json", by_alias=True, exclude_unset=True)
    content = shown.get("content")
    for part in content if isinstance(content, list) else ():
        # Names of the Responses API.
        if part["type"] in ("input_text", "output_text"):
            part["type"] = "text"
    return shown


def _check_fields(target: UpstreamTarget, request: GenerationTable) -> None:
    for name in (*_NEED_TOKENS, *_NEED_ENGINE):
        if getattr(request, name):
            raise _not_relayed(target, name)


def _not_relayed(target: UpstreamTarget, param: str) -> UnsupportedByModel:
    return UnsupportedByModel(
        f"{param} needs a local model; {target.name} is served by the upstream {target.upstream}: "
        f"omit {param}",
        param=param,
    )


def _texts(target: UpstreamTarget, prompt: str | Sequence[Any]) -> list[str]:
    given = [prompt] if isinstance(prompt, str) else list(prompt)
    texts = [one for one in given if isinstance(one, str)]
    if len(texts) < len(given):
        raise UnsupportedByModel(
            f"prompt has token ids; {target.name} is served by the upstream {target.upstream}, "
            "which gets text: send text",
            param="prompt",
        )
    if not all(texts):
        raise InvalidRequest("the prompt is empty; it needs at least one token", param="prompt")
    return texts
