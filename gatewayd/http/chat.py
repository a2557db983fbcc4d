"""``POST /v1/chat/completions``."""

from __future__ import annotations

from gatewayd.engines.seam import EngineRequest
from gatewayd.errors import InvalidRequest
from gatewayd.http.chat_wire import ChatWire
from gatewayd.http.generate import GenerationRoute, Prepared, identity_of
from gatewayd.http.sampling import (
    choice_options,
    fit_max_tokens,
    priority_of,
    retention_of,
    sampling_params,
)
from gatewayd.http.schema.chat import ChatRequest


class ChatRoute(GenerationRoute[ChatRequest]):
    """Messages in, messages out."""

    label = "/v1/chat/completions"
    table = ChatRequest

    async def prepare(self, request: ChatRequest, request_id: str) -> Prepared:
        """Render and encode the messages, check what the table cannot."""
        services = self._services
        name = services.check_model(request.model)
        model = await services.loaded_model()
        _check_fields(request)
        asked, param = request.max_completion_tokens, "max_completion_tokens"
        if asked is None:
            asked, param = request.max_tokens, "max_tokens"
        if asked == 0:
            raise InvalidRequest(f"{param} is 0; the minimum is 1", param=param)
        prompt = await services.text.encode_chat(
            [message.for_template() for message in request.messages],
            limit=model.max_model_len,
            add_generation_prompt=request.add_generation_prompt,
        )
        max_tokens = fit_max_tokens(
            asked, None, len(prompt), model.max_model_len, prompt_param="messages", param=param
        )
        params = sampling_params(
            request,
            model,
            max_tokens=max_tokens,
            logprobs=(request.top_logprobs or 0) if request.logprobs else None,
        )
        n = request.n or 1
        identity = identity_of(
            request, "chatcmpl-", request_id, name, with_logprobs=bool(request.logprobs)
        )
        engine_request = EngineRequest(
            request_id=request_id,
            prompt=prompt,
            params=params,
            priority=priority_of(request),
            retention=retention_of(request),
            retry_started=not request.stream,
        )
        return Prepared(
            requests=[engine_request],
            num_choices=n,
            options=choice_options(request, services.text.tokenizer),
            wire=ChatWire(identity, services.text.tokenizer, n),
        )


def _check_fields(request: ChatRequest) -> None:
    if request.top_logprobs and not request.logprobs:
        raise InvalidRequest("top_logprobs needs logprobs to be true", param="top_logprobs")
    if request.stream_options is not None and not request.stream:
        raise InvalidRequest("stream_options needs stream to be true", param="stream_options")
