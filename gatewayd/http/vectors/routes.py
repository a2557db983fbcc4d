"""What all routes do that answer with something made of vectors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar

from gatewayd.errors import InvalidRequest
from gatewayd.http.asgi import JSON_HEADER, Receive, Scope, Send, ignored_header, send_body
from gatewayd.http.openai.generate import receive_request
from gatewayd.http.openai.large_answers import apart
from gatewayd.http.schema.embeddings import PoolingTable
from gatewayd.http.server.disconnect import disconnect_signal
from gatewayd.http.services import Services
from gatewayd.http.vectors.pooling import Given, Vectors, pooled, pooling_work
from gatewayd.pipeline.work import Work
from gatewayd.tenants.principal import Principal, principal_of
from gatewayd_hooks.requests.fields import MAX_INPUTS

RequestT = TypeVar("RequestT", bound=PoolingTable)


class Answered(NamedTuple):
    """What an answer is made of.

    Attributes:
        id: of the request, without its prefix.
        model: the name that was asked for.
        tokens: of all prompts.
        vectors: of the texts, in their order, shape ``[texts, hidden_size]``.
    """

    id: str
    model: str
    tokens: int
    vectors: Vectors

    @property
    def usage(self) -> dict[str, int]:
        """In OpenAI's words."""
        return {"prompt_tokens": self.tokens, "total_tokens": self.tokens}


class VectorRoute(ABC, Generic[RequestT]):
    """An ASGI app; a subclass says which texts its request has and what comes of their vectors."""

    label: str
    table: type[RequestT]

    def __init__(self, services: Services) -> None:
        self._services = services

    @abstractmethod
    def given(self, request: RequestT) -> Sequence[Given]:
        """The texts.

        Raises:
            InvalidRequest: fields do not fit together.
        """

    @abstractmethod
    def write(self, request: RequestT, answered: Answered) -> bytes:
        """The body of the answer; called in a thread."""

    async def work(
        self,
        request: RequestT,
        request_id: str,
        arrival: float,
        principal: Principal,
        *,
        endpoint: str = "",
    ) -> Work:
        """Check a request and make prompts of its texts.

        Raises:
            GatewayError: it is refused.
        """
        given = self.given(request)
        if len(given) > MAX_INPUTS:
            field = given[-1].field
            raise InvalidRequest(
                f"{len(given)} texts are to be embedded; the maximum is {MAX_INPUTS}: send them "
                "in parts",
                param=field,
            )
        return await pooling_work(
            self._services,
            request,
            given,
            request_id=request_id,
            endpoint=endpoint or self.label,
            arrival=arrival,
            principal=principal,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        services, request_id = self._services, scope["request_id"]
        arrival = services.clock()
        request, ignored = await receive_request(services, self.table, scope, receive)
        name = services.check_model(request.model)
        work = await self.work(request, request_id, arrival, principal_of(scope))
        found = await pooled(services, work, disconnect_signal(scope, receive))
        id, tokens = request_id.removeprefix("req_"), found.prompt_tokens
        body = await apart(lambda: self.write(request, Answered(id, name, tokens, found.make())))
        headers = [JSON_HEADER, *ignored_header(ignored), *found.headers]
        await send_body(send, body, headers=headers)
