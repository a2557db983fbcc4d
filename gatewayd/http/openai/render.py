"""``POST .../render``: what a request would be to the engine, without asking it to compute."""

from __future__ import annotations

from typing import Any

from gatewayd.http.asgi import (
    JSON_HEADER,
    Receive,
    Scope,
    Send,
    encode_json,
    ignored_header,
    send_body,
)
from gatewayd.http.openai.generate import (
    GenerationRoute,
    PreparedRequest,
    RequestT,
    receive_request,
)
from gatewayd.http.services import Services
from gatewayd.text.tokenizer import Tokenizer
from gatewayd_engine.process.messages import ModelInfo


class Render:
    """The dry run of a route: refused as it would be, then shown instead of computed.

    Args:
        services: of the gateway.
        route: what is tried.
    """

    def __init__(self, services: Services, route: GenerationRoute[RequestT]) -> None:
        self._services = services
        self._route = route
        self.label = f"{route.label}/render"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        services = self._services
        request, ignored = await receive_request(services, self._route.table, scope, receive)
        prepared = await self._route.prepare(request, scope["request_id"])
        model = await services.loaded_model()
        tokenizer = services.text.tokenizer
        size = sum([len(one.prompt) for one in prepared.requests])
        answer = await tokenizer.run_by_size(
            size, lambda: encode_json(rendered(prepared, model, tokenizer))
        )
        await send_body(send, answer, headers=[JSON_HEADER, *ignored_header(ignored)])


def rendered(prepared: PreparedRequest, model: ModelInfo, tokenizer: Tokenizer) -> dict[str, Any]:
    """What is known before anything is computed.

    Blocks are counted as if nothing were cached: those of a prompt are shared by its choices,
    those of answers are each choice's own.
    """
    page, prompts, prompt_blocks, most_blocks = model.page_size, [], 0, 0
    for one in prepared.requests:
        count = len(one.prompt)
        prompts.append(
            {
                "text": tokenizer.decode(one.prompt),
                "token_ids": list(one.prompt),
                "count": count,
            }
        )
        prompt_blocks += -(-count // page)
        # A block that the prompt fills in part is each choice's own once it writes there; the last
        # token of an answer is written nowhere.
        whole = count // page
        own = -(-(count + one.params.max_tokens - 1) // page) - whole
        most_blocks += whole + prepared.num_choices * own
    return {
        "object": "gateway.render",
        "model": prepared.identity.model,
        "prompts": prompts,
        "num_choices": prepared.num_choices,
        "max_tokens": prepared.requests[0].params.max_tokens,
        "max_model_len": model.max_model_len,
        "blocks": {
            "size": page,
            "prompt": prompt_blocks,
            "at_most": most_blocks,
            "pool": model.num_pages,
        },
    }
