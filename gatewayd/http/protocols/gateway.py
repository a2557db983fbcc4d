"""Gateway API for protocol plugins: chat, completions, embeddings and token counting."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeVar

from gatewayd.catalogue.target import ModelTarget
from gatewayd.engines.api import ReplicaState
from gatewayd.errors import EngineUnavailable, GatewayError, ModelNotFound
from gatewayd.http import body_threads
from gatewayd.http.asgi import App, Header
from gatewayd.http.in_process import InProcessCalls
from gatewayd.http.openai.chat import prepare_chat
from gatewayd.http.openai.chat_prompt import counted_prompt
from gatewayd.http.openai.completions import CompletionRoute
from gatewayd.http.openai.generate import PreparedRequest
from gatewayd.http.openai.granted import enforce_grant
from gatewayd.http.openai.large_answers import run_in_thread
from gatewayd.http.parse import check
from gatewayd.http.protocols import local_models
from gatewayd.http.protocols.answer import ProtocolAnswer, refusal_of
from gatewayd.http.routing.attempts import start_generation
from gatewayd.http.routing.generation_call import GenerationCall
from gatewayd.http.routing.routed import outline_of
from gatewayd.http.schema.chat import ChatRequest
from gatewayd.http.schema.completion import CompletionRequest
from gatewayd.http.schema.embeddings import EmbeddingRequest
from gatewayd.http.services import Services
from gatewayd.http.vectors.embeddings import EmbeddingsRoute as Embedder
from gatewayd.http.vectors.embeddings import truncate_and_normalize
from gatewayd.http.vectors.pooling import pool_prompts
from gatewayd.tenants.principal import Principal, current_principal
from gatewayd_hooks.protocols import (
    CallAnswer,
    Embeddings,
    HttpRequest,
    PullProgress,
    ServedModel,
    ServedText,
    StoredModel,
    Timing,
    Usage,
)
from gatewayd_hooks.requests.tables import RequestTable

T = TypeVar("T")
TableT = TypeVar("TableT", bound=RequestTable)

_OWN_FIELDS = ("truncate_prompt_tokens", "normalize")
"""Fields by which protocols say what their APIs do with long texts and vectors."""


@dataclass(slots=True, eq=False, repr=False)
class ProtocolExchange:
    """One request of a protocol plugin while it is processed.

    Attributes:
        label: of its route, for the metrics.
        arrival: time of its arrival.
        principal: the authenticated client.
        ignored: fields that were accepted but ignored.
        num_answers: number of started answers.
        extra_headers: headers of a result without an answer to read, such as embeddings.
    """

    label: str
    arrival: float
    principal: Principal
    ignored: list[str] = field(default_factory=list)
    num_answers: int = 0
    extra_headers: list[Header] = field(default_factory=list)
    _answers: list[ProtocolAnswer] = field(default_factory=list)
    _is_over: bool = False

    def add(self, answer: ProtocolAnswer) -> None:
        """Track an answer, to abandon, fail or close it with the exchange."""
        self._answers.append(answer)
        # The client disconnected while the answer was started.
        if self._is_over:
            answer.abandon()

    def headers(self) -> list[Header]:
        """Return the timing and rate-limit headers of the first answer."""
        return self._answers[0].headers() if self._answers else self.extra_headers

    def abandon(self) -> None:
        """Cancel all answers because the client disconnected."""
        self._is_over = True
        for answer in self._answers:
            answer.abandon()

    def fail(self, error: GatewayError) -> None:
        """Fail all running answers."""
        for answer in self._answers:
            answer.fail(error)

    def close(self) -> None:
        """Cancel running answers and account for all."""
        self._is_over = True
        for answer in self._answers:
            answer.close()


class _Continuation(CompletionRoute):
    """Completions that default to the rest of the context, as chats do."""

    default_tokens = None


class ServedGateway:
    """Implements ``gatewayd_hooks.protocols.Gateway``."""

    def __init__(self, services: Services) -> None:
        self.version = services.version
        self._services = services
        self._completions = _Continuation(services)
        self._embeddings = Embedder(services)
        self._exchanges: dict[str, ProtocolExchange] = {}
        self._calls = InProcessCalls()

    def set_app(self, app: App) -> None:
        """Set the app for ``call``: all of the data plane, which is built after its routes."""
        self._calls.app = app

    @contextmanager
    def exchange(
        self, request_id: str, label: str, arrival: float, principal: Principal
    ) -> Iterator[ProtocolExchange]:
        """Track one request of a protocol; its answers are closed at the end of the block."""
        # By request id, as plugins return nothing but the request that they were passed.
        exchange = self._exchanges[request_id] = ProtocolExchange(label, arrival, principal)
        try:
            yield exchange
        finally:
            del self._exchanges[request_id]
            exchange.close()

    @property
    def models(self) -> Sequence[str]:
        """See ``Gateway``: the models visible to the current request's key."""
        return current_principal().visible(self._services.catalogue.names)

    @property
    def model(self) -> ServedModel | None:
        """See ``Gateway``."""
        return self.describe(names[0]) if (names := self.models) else None

    def describe(self, name: str) -> ServedModel | None:
        """See ``Gateway``."""
        services, text = self._serving(name), self.text_of(name)
        model = services.fleet.model
        if model is None:
            return None
        return ServedModel(
            created=services.created,
            architecture=model.architecture,
            num_parameters=model.num_parameters,
            dtype=model.dtype,
            context_length=model.max_model_len,
            chat_template=text.chat_template,
            calls_tools=text.calls_tools,
            reasons=text.reasons,
        )

    def text_of(self, name: str) -> ServedText:
        """See ``Gateway``."""
        services = self._serving(name)
        if not isinstance(services.target, ModelTarget):
            # An upstream renders chats itself, and takes what OpenAI's API has.
            return ServedText(chat_template="", calls_tools=True, reasons=True)
        template, parsers = services.text.template, services.parsers
        return ServedText(
            chat_template="" if template is None else template.source,
            calls_tools=parsers.tools is not None,
            reasons=parsers.reasoning is not None,
        )

    def is_loaded(self, name: str) -> bool:
        """See ``Gateway``."""
        replicas = self._serving(name).fleet.status()
        return any(replica.state is ReplicaState.READY for replica in replicas)

    async def load(self, name: str) -> None:
        """See ``Gateway``."""
        services = self._serving(name)
        try:
            await services.wait_loaded()
            if services.fleet.condition == "asleep":
                await services.resident()
        except GatewayError as error:
            raise_refusal(error)

    def is_ready(self, name: str) -> bool:
        """See ``Gateway``."""
        try:
            return self._services.catalogue.find(name).fleet.is_ready
        except (ModelNotFound, EngineUnavailable):
            # None of a route's targets is served.
            return False

    def call(
        self,
        method: str,
        target: str,
        *,
        headers: Mapping[str, str],
        body: bytes = b"",
        client: str | None = None,
    ) -> AbstractAsyncContextManager[CallAnswer]:
        """See ``Gateway``."""
        return self._calls.call(method, target, headers, body, client)

    async def read(self, request: HttpRequest, make: Callable[[dict[str, Any]], T]) -> T:
        """See ``Gateway``."""
        if len(request.body) > self._services.limits.thread_bytes:
            return await body_threads.run_in_thread(lambda: make(request.json()))
        return make(request.json())

    async def chat(self, body: Mapping[str, Any], request: HttpRequest) -> ProtocolAnswer:
        """See ``Gateway``."""
        try:
            checked = await self._checked(ChatRequest, body, request)
            return await self._start(
                checked, request, lambda services, id_: prepare_chat(services, checked, id_)
            )
        except GatewayError as error:
            raise_refusal(error)

    async def generate(self, body: Mapping[str, Any], request: HttpRequest) -> ProtocolAnswer:
        """See ``Gateway``."""
        try:
            checked = await self._checked(CompletionRequest, body, request)
            return await self._start(
                checked,
                request,
                lambda services, id_: self._completions.prepare(services, checked, id_),
            )
        except GatewayError as error:
            raise_refusal(error)

    async def embed(self, body: Mapping[str, Any], request: HttpRequest) -> Embeddings:
        """See ``Gateway``."""
        exchange = self._exchange_of(request)
        try:
            checked = await self._checked(EmbeddingRequest, body, request)
            services = self._services.serving(checked.model)
            if not isinstance(services.target, ModelTarget):
                # Of this gateway alone; an upstream does what its own API says.
                checked = checked.model_copy(update=dict.fromkeys(_OWN_FIELDS))
            work = await self._embeddings.work(
                services,
                checked,
                self._new_id(request),
                exchange.arrival,
                exchange.principal,
                endpoint=exchange.label,
            )
            # Without a disconnect signal: the handler's task is cancelled.
            found = await pool_prompts(services, work, None)

            def made() -> list[list[float]]:
                vectors = found.make()
                if not found.is_final:
                    vectors = truncate_and_normalize(checked, vectors)
                shown: list[list[float]] = vectors.tolist()
                return shown

            vectors = await run_in_thread(made)
        except GatewayError as error:
            raise_refusal(error)
        exchange.extra_headers = found.headers
        spans, total = found.timing, self._services.clock() - exchange.arrival
        usage = Usage(found.prompt_tokens, 0, found.cached_tokens)
        timing = Timing(spans.queue or 0.0, spans.prefill or 0.0, 0.0, total)
        return Embeddings(vectors, usage, timing)

    async def count_tokens(self, body: Mapping[str, Any]) -> int:
        """See ``Gateway``."""
        try:
            # In any case, as the size of the body is not known here.
            checked, _ = await body_threads.run_in_thread(lambda: check(ChatRequest, dict(body)))
            prompt = await counted_prompt(self._services.serving(checked.model), checked)
        except GatewayError as error:
            raise_refusal(error)
        return len(prompt.token_ids)

    async def stored_models(self) -> Sequence[StoredModel]:
        """See ``Gateway``."""
        return await local_models.stored_models(self._services)

    def pull_model(self, name: str) -> AsyncGenerator[PullProgress, None]:
        """See ``Gateway``."""
        return local_models.pull_model(self._services, name)

    async def delete_model(self, name: str) -> None:
        """See ``Gateway``."""
        await local_models.delete_model(self._services, name)

    def _serving(self, name: str) -> Services:
        """Return the services of a model.

        Raises:
            RequestRefusal: it is not served, or not to the request's key.
        """
        try:
            return self._services.serving(name)
        except GatewayError as error:
            raise_refusal(error)

    async def _checked(
        self, table: type[TableT], body: Mapping[str, Any], request: HttpRequest
    ) -> TableT:
        """Validate a body, in a thread if large, and enforce its sender's rights."""
        fields, exchange = dict(body), self._exchange_of(request)
        if len(request.body) > self._services.limits.thread_bytes:
            checked, ignored = await body_threads.run_in_thread(lambda: check(table, fields))
        else:
            checked, ignored = check(table, fields)
        checked, ignored = enforce_grant(checked, ignored, exchange.principal)
        exchange.ignored += ignored
        return checked

    def _new_id(self, request: HttpRequest) -> str:
        """Return the request's own id for its first answer, and suffixed ids for further ones."""
        exchange = self._exchange_of(request)
        exchange.num_answers += 1
        count = exchange.num_answers
        return request.request_id if count == 1 else f"{request.request_id}-{count}"

    async def _start(
        self,
        checked: ChatRequest | CompletionRequest,
        request: HttpRequest,
        prepare: Callable[[Services, str], Awaitable[PreparedRequest]],
    ) -> ProtocolAnswer:
        exchange, request_id = self._exchange_of(request), self._new_id(request)
        services, prepared, generation = await start_generation(
            self._services,
            GenerationCall(
                model=checked.model,
                request_id=request_id,
                endpoint=exchange.label,
                arrival=exchange.arrival,
                principal=exchange.principal,
                prepare=lambda services: prepare(services, request_id),
                outline=lambda: outline_of(checked, request_id, exchange.principal),
            ),
        )
        exchange.ignored += prepared.ignored
        answer = ProtocolAnswer(
            generation,
            prepared.identity,
            services.tokenizer,
            lambda: services.fleet.room,
        )
        exchange.add(answer)
        return answer

    def _exchange_of(self, request: HttpRequest) -> ProtocolExchange:
        exchange = self._exchanges.get(request.request_id)
        if exchange is None:
            raise RuntimeError(f"request {request.request_id} has been answered already")
        return exchange


def raise_refusal(error: GatewayError) -> NoReturn:
    """Raise a gateway error as the plugin contract's error.

    Raises:
        RequestRefusal: always.
    """
    raise refusal_of(error) from error
