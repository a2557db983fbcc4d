"""Base class of the routes that respond with embeddings or scores of texts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar

from gatewayd.errors import InvalidRequest
from gatewayd.http.asgi import JSON_HEADER, Receive, Scope, Send, ignored_header, send_body
from gatewayd.http.openai.generate import receive_request
from gatewayd.http.openai.large_answers import run_in_thread
from gatewayd.http.schema.embeddings import PoolingTable
from gatewayd.http.server.disconnect import disconnect_signal
from gatewayd.http.services import Services
from gatewayd.http.vectors.pooling import PoolingInput, Vectors, pool_prompts, pooling_work
from gatewayd.pipeline.work import Work
from gatewayd.tenants.principal import Principal, principal_of
from gatewayd_hooks.requests.fields import MAX_INPUTS

RequestT = TypeVar("RequestT", bound=PoolingTable)


class VectorResponse(NamedTuple):
    """Contents of a response.

    Attributes:
        id: of the request, without its prefix.
        model: the requested name.
        tokens: of all prompts.
        vectors: of the texts, in order, shape ``[texts, hidden_size]``.
        is_final: whether they are those of an upstream, which are not changed.
    """

    id: str
    model: str
    tokens: int
    vectors: Vectors
    is_final: bool = False

    @property
    def usage(self) -> dict[str, int]:
        """Usage object in OpenAI's format."""
        return {"prompt_tokens": self.tokens, "total_tokens": self.tokens}


class VectorRoute(ABC, Generic[RequestT]):
    """ASGI app that pools texts; subclasses define the texts and the response."""

    label: str
    table: type[RequestT]

    def __init__(self, services: Services) -> None:
        self._services = services

    @abstractmethod
    def inputs(self, request: RequestT) -> Sequence[PoolingInput]:
        """Return the texts of a request.

        Raises:
            InvalidRequest: fields are inconsistent.
        """

    @abstractmethod
    def write(self, request: RequestT, answered: VectorResponse) -> bytes:
        """Encode the response's body; called in a thread."""

    async def work(
        self,
        services: Services,
        request: RequestT,
        request_id: str,
        arrival: float,
        principal: Principal,
        *,
        endpoint: str = "",
    ) -> Work:
        """Validate a request and encode its texts as prompts.

        Raises:
            GatewayError: the request is refused.
        """
        given = self.inputs(request)
        if len(given) > MAX_INPUTS:
            field = given[-1].field
            raise InvalidRequest(
                f"{len(given)} texts are to be embedded; the maximum is {MAX_INPUTS}: send them "
                "in parts",
                param=field,
            )
        return await pooling_work(
            services,
            request,
            given,
            request_id=request_id,
            endpoint=endpoint or self.label,
            arrival=arrival,
            principal=principal,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        request_id, arrival = scope["request_id"], self._services.clock()
        request, ignored = await receive_request(self._services, self.table, scope, receive)
        services = self._services.serving(request.model)
        name = request.model or services.name
        work = await self.work(services, request, request_id, arrival, principal_of(scope))
        found = await pool_prompts(services, work, disconnect_signal(scope, receive))
        id, tokens = request_id.removeprefix("req_"), found.prompt_tokens
        # Including `make`, which adds up the hidden states.
        body = await run_in_thread(
            lambda: self.write(
                request, VectorResponse(id, name, tokens, found.make(), found.is_final)
            )
        )
        headers = [JSON_HEADER, *ignored_header(ignored), *found.headers]
        if request.model in services.catalogue.routes:
            headers.append((b"x-gatewayd-target", services.target.name.encode()))
        await send_body(send, body, headers=headers)
