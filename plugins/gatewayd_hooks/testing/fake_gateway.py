"""Gateway without a model, for tests of protocols: its answers are configured."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from gatewayd_hooks.parsing import Part, Text
from gatewayd_hooks.protocols import (
    AnswerToken,
    CallAnswer,
    Delta,
    Embeddings,
    HttpRequest,
    PullProgress,
    RequestRefusal,
    ServedModel,
    ServedText,
    StoredModel,
    Timing,
    Usage,
)

T = TypeVar("T")

MODEL = ServedModel(
    created=1_700_000_000,
    architecture="LlamaForCausalLM",
    num_parameters=11_000_000,
    dtype="float32",
    context_length=2048,
    chat_template="{{ messages }}",
    calls_tools=True,
    reasons=True,
)


def request(method: str, path: str, body: bytes = b"", **headers: str) -> HttpRequest:
    """Return a request as passed to a handler."""
    return HttpRequest(method, path, {}, {}, headers, body, "req_0123456789abcdef01234567")


class FakeAnswer:
    """Answer that is known from the start.

    Attributes:
        num_closed: how often it was closed.
    """

    def __init__(
        self,
        model: str,
        deltas: Sequence[Delta],
        usage: Usage,
        failure: RequestRefusal | None,
        prompt: Sequence[AnswerToken] = (),
    ) -> None:
        self.id = "chatcmpl-0123456789abcdef01234567"
        self.model = model
        self.created = MODEL.created
        self.usage = usage
        self.timing = Timing(0.001, 0.02, 0.3, 0.33)
        self.num_closed = 0
        self._deltas = deltas
        self._failure = failure
        self._prompt = prompt

    async def __aiter__(self) -> AsyncIterator[Delta]:
        """Yield the deltas, then raise the failure."""
        for delta in self._deltas:
            yield delta
        if self._failure is not None:
            raise self._failure

    def pop_scored_prompt(self) -> Sequence[AnswerToken]:
        """Return the configured tokens once."""
        found, self._prompt = self._prompt, ()
        return found

    def close(self) -> None:
        """Count the call."""
        self.num_closed += 1


class FakeGateway:
    """Implements ``Gateway``; configure the next answers through its attributes.

    Attributes:
        deltas: of the next answers.
        refusal: of the next requests, or None.
        failure: at the end of the next answers, or None.
        usage: of the next answers.
        bodies: request bodies received, in order.
        answers: answers returned, in order.
        stored: models of the store; a deleted one is removed from it.
        progress: of the next pulls.
        prompt: scored tokens of the next prompts.
        model: the model of all names, except for those in ``others``; None if never loaded.
        others: models of other names in ``models``; None if never loaded.
        asleep: names whose model was loaded before and is not loaded now.
        loads: names passed to ``load``, in order.
        called: status and pieces of answers to ``call``.
        calls: method, target, headers and body of requests to ``call``, in order.
    """

    def __init__(self) -> None:
        self.models: Sequence[str] = ("nano", "nano-alias")
        self.version = "1.2.3"
        self.model: ServedModel | None = MODEL
        self.others: dict[str, ServedModel | None] = {}
        self.asleep: set[str] = set()
        self.loads: list[str] = []
        self.usage = Usage(12, 5, 8)
        self.refusal: RequestRefusal | None = None
        self.failure: RequestRefusal | None = None
        self.deltas: Sequence[Delta] = ()
        self.prompt: Sequence[AnswerToken] = ()
        self.called: tuple[int, Sequence[bytes]] = (200, (b"{}",))
        self.calls: list[tuple[str, str, Mapping[str, str], bytes]] = []
        self.bodies: list[Mapping[str, Any]] = []
        self.answers: list[FakeAnswer] = []
        self.stored: Sequence[StoredModel] = ()
        self.progress: Sequence[PullProgress] = (PullProgress("listing"), PullProgress("done"))
        self.says(Text("Hello, "), Text("world!"))

    def says(self, *parts: Part, finish_reason: str = "stop", stop: str | None = None) -> None:
        """Set the parts of the next answers, one delta each."""
        contents = [Delta(0, (part,)) for part in parts]
        self.deltas = [*contents, Delta(0, (), finish_reason, stop)]

    def describe(self, name: str) -> ServedModel | None:
        """Return the configured model."""
        self._check_name(name)
        return self.others.get(name, self.model)

    def text_of(self, name: str) -> ServedText:
        """Return the text side of the configured model; that of ``MODEL`` if it has none."""
        model = self.describe(name) or MODEL
        return ServedText(model.chat_template, model.calls_tools, model.reasons)

    def is_loaded(self, name: str) -> bool:
        """Return whether the name has a model and does not sleep."""
        return self.describe(name) is not None and name not in self.asleep

    async def load(self, name: str) -> None:
        """Record the name; its model is ``MODEL`` if it was never loaded."""
        self._check_name(name)
        self.loads.append(name)
        if self.refusal is not None:
            raise self.refusal
        self.asleep.discard(name)
        if self.describe(name) is None:
            self.others[name] = MODEL

    def is_ready(self, name: str) -> bool:
        """Whether a model is served."""
        return name in self.models

    @asynccontextmanager
    async def call(
        self,
        method: str,
        target: str,
        *,
        headers: Mapping[str, str],
        body: bytes = b"",
        client: str | None = None,
    ) -> AsyncGenerator[CallAnswer, None]:
        """Yield ``called``."""
        self.calls.append((method, target, headers, body))
        status, pieces = self.called

        async def read() -> AsyncIterator[bytes]:
            for piece in pieces:
                yield piece

        yield CallAnswer(status, {}, read())

    async def read(self, request: HttpRequest, make: Callable[[dict[str, Any]], T]) -> T:
        """Parse a body in the event loop."""
        return make(request.json())

    async def chat(self, body: Mapping[str, Any], request: HttpRequest) -> FakeAnswer:
        """Return a configured answer."""
        return self._answer(body)

    async def generate(self, body: Mapping[str, Any], request: HttpRequest) -> FakeAnswer:
        """Return a configured answer."""
        return self._answer(body)

    async def embed(self, body: Mapping[str, Any], request: HttpRequest) -> Embeddings:
        """Return a vector for each text: its index, and 1."""
        self._check(body)
        given = body.get("input")
        count = len(given) if isinstance(given, list) else 1
        vectors = [[float(at), 1.0] for at in range(count)]
        return Embeddings(vectors, self.usage, Timing(0.001, 0.02, 0.0, 0.021))

    async def count_tokens(self, body: Mapping[str, Any]) -> int:
        """Return the prompt tokens of ``usage``."""
        self.bodies.append(body)
        if self.refusal is not None:
            raise self.refusal
        return self.usage.prompt_tokens

    async def stored_models(self) -> Sequence[StoredModel]:
        """Return ``stored``."""
        return self.stored

    async def pull_model(self, name: str) -> AsyncGenerator[PullProgress, None]:
        """Yield ``progress``, then raise the failure."""
        if self.refusal is not None:
            raise self.refusal
        for progress in self.progress:
            yield progress
        if self.failure is not None:
            raise self.failure

    async def delete_model(self, name: str) -> None:
        """Remove a model from ``stored``."""
        rest = [model for model in self.stored if model.name != name]
        if len(rest) == len(self.stored):
            raise RequestRefusal(404, f"{name} is not in the store", code="model_not_stored")
        self.stored = rest

    def _check(self, body: Mapping[str, Any]) -> str:
        self.bodies.append(body)
        if self.refusal is not None:
            raise self.refusal
        model = str(body.get("model", ""))
        self._check_name(model)
        return model

    def _check_name(self, name: str) -> None:
        if name not in self.models:
            raise RequestRefusal(404, f"there is no model {name!r}", code="model_not_found")

    def _answer(self, body: Mapping[str, Any]) -> FakeAnswer:
        model = self._check(body)
        deltas = self.deltas
        if body.get("return_token_ids") and body.get("logprobs") is not None:
            deltas = [delta._replace(tokens=delta.tokens or _tokens(delta)) for delta in deltas]
        prompt = () if body.get("prompt_logprobs") is None else self.prompt
        self.answers.append(FakeAnswer(model, deltas, self.usage, self.failure, prompt))
        return self.answers[-1]


def _tokens(delta: Delta) -> Sequence[AnswerToken]:
    """Return one token for each text of a delta."""
    texts = [part.text for part in delta.parts if isinstance(part, Text)]
    return [AnswerToken(len(text), text, -0.5) for text in texts]
