"""``POST .../render``: dry run of a request that shows its prompt and KV blocks."""

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
    """Dry run of a route: validates and prepares the request, without running it.

    Args:
        services: of the gateway.
        route: the route to dry-run.
    """

    def __init__(self, services: Services, route: GenerationRoute[RequestT]) -> None:
        self._services = services
        self._route = route
        self.label = f"{route.label}/render"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        request, ignored = await receive_request(self._services, self._route.table, scope, receive)
        services = self._services.serving(request.model)
        prepared = await self._route.prepare(services, request, scope["request_id"])
        model = await services.loaded_model()
        tokenizer = services.text.tokenizer
        size = sum([len(one.prompt) for one in prepared.requests])
        answer = await tokenizer.run_by_size(
            size, lambda: encode_json(rendered(prepared, model, tokenizer))
        )
        await send_body(send, answer, headers=[JSON_HEADER, *ignored_header(ignored)])


def rendered(prepared: PreparedRequest, model: ModelInfo, tokenizer: Tokenizer) -> dict[str, Any]:
    """Describe a prepared request.

    Blocks are counted as if nothing were cached: prompt blocks are shared by the choices, blocks
    of generated tokens are each choice's own.
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
        # A partially filled prompt block is copied on write by each choice; the KV of the last
        # generated token is never written.
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
