"""Services of the gateway for protocols.

The common format is OpenAI's: ``Gateway.chat`` takes the body of ``POST /v1/chat/completions`` as a
dictionary and refuses what that route would refuse.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, NamedTuple, Protocol, TypeVar

from gatewayd_hooks.requests.answers import ChatAnswer, Embeddings
from gatewayd_hooks.requests.http import CallAnswer, HttpRequest
from gatewayd_hooks.requests.models import PullProgress, StoredModel

T = TypeVar("T")


class ServedModel(NamedTuple):
    """Properties of a served model that has been loaded.

    Attributes:
        created: Unix time at which it began to be served.
        architecture: its class, such as ``LlamaForCausalLM``.
        num_parameters: number of its parameters.
        dtype: of its weights, such as ``bfloat16``.
        context_length: tokens of a prompt with its answer.
        chat_template: Jinja2; empty for a model without chat support.
        calls_tools: whether there is a parser for its tool calls.
        reasons: whether there is a parser for its reasoning.
    """

    created: int
    architecture: str
    num_parameters: int
    dtype: str
    context_length: int
    chat_template: str
    calls_tools: bool
    reasons: bool


class ServedText(NamedTuple):
    """Properties of a served model that are known before it is loaded. New in 1.29.

    Attributes:
        chat_template: Jinja2; empty for a model without chat support.
        calls_tools: whether there is a parser for its tool calls.
        reasons: whether there is a parser for its reasoning.
    """

    chat_template: str
    calls_tools: bool
    reasons: bool


class Gateway(Protocol):
    """Services of the gateway for protocols.

    Attributes:
        version: of the daemon.
    """

    version: str

    @property
    def models(self) -> Sequence[str]:
        """Names of served models that the request's key may see."""

    @property
    def model(self) -> ServedModel | None:
        """Model of the first of ``models``; None until an engine has loaded it."""

    def describe(self, name: str) -> ServedModel | None:
        """Return the properties of a model; None if it was never loaded.

        They stay while it is unloaded. New in 1.29.

        Args:
            name: one of ``models``, which may be names of different models.

        Raises:
            Refusal: it is not served, or not to the request's key.
        """

    def text_of(self, name: str) -> ServedText:
        """Return the properties of a model that are known before it is loaded. New in 1.29.

        Raises:
            Refusal: as ``describe``.
        """

    def is_loaded(self, name: str) -> bool:
        """Return whether an engine has a model loaded now. New in 1.29.

        Raises:
            Refusal: as ``describe``.
        """

    async def load(self, name: str) -> None:
        """Wait until a model is loaded, as a request for it does. New in 1.29.

        A model that sleeps is loaded, for which another one may be unloaded; later on it may be
        unloaded again.

        Raises:
            Refusal: as ``describe``, or it cannot be loaded now.
        """

    def is_ready(self, name: str) -> bool:
        """Whether a request for a model would be served now. New in 1.29.

        Args:
            name: one of ``models``.
        """

    def call(
        self,
        method: str,
        target: str,
        *,
        headers: Mapping[str, str],
        body: bytes = b"",
        client: str | None = None,
    ) -> AbstractAsyncContextManager[CallAnswer]:
        """Send a request to the gateway itself, for protocols with a port of their own.

        It is authenticated by its headers, limited, counted and answered like one that arrived over
        HTTP. Leaving the context before the answer's end cancels it, as a disconnect does. New in
        1.29.

        Args:
            method: in upper case.
            target: path, percent-encoded, perhaps with a query.
            headers: in addition to those of the body's length and of the host.
            body: the complete body.
            client: address of the client, by which clients without keys are told apart.

        Raises:
            ValueError: a header is invalid.
        """

    async def read(self, request: HttpRequest, make: Callable[[dict[str, Any]], T]) -> T:
        """Parse a body and convert it; large bodies are handled in a thread, off the event loop.

        Args:
            request: whose body to parse.
            make: called with ``request.json()``, perhaps in a thread; it should not keep a
                reference to it.

        Raises:
            Refusal: the body is no object, or ``make`` refuses it.
        """

    async def chat(self, body: Mapping[str, Any], request: HttpRequest) -> ChatAnswer:
        """Start a chat completion.

        Args:
            body: as of ``POST /v1/chat/completions``; ``stream`` says whether output is sent before
                the end.
            request: whose client is watched: if it disconnects, generation is cancelled.

        Raises:
            Refusal: as that route would.
        """

    async def count_tokens(self, body: Mapping[str, Any]) -> int:
        """Return the number of prompt tokens of ``chat`` with this body.

        It may exceed the context length; texts over a million characters are not counted.

        Raises:
            Refusal: as that route would, except for the length.
        """

    async def generate(self, body: Mapping[str, Any], request: HttpRequest) -> ChatAnswer:
        """Start a text completion: as ``chat``, with a body of ``POST /v1/completions``.

        Without ``max_tokens`` the answer may fill the context, as in a chat.
        """

    async def embed(self, body: Mapping[str, Any], request: HttpRequest) -> Embeddings:
        """Compute embeddings of texts.

        Args:
            body: as of ``POST /v1/embeddings``; ``encoding_format`` has no effect.
            request: whose client is watched: if it disconnects, the computation is cancelled.

        Raises:
            Refusal: as that route would.
        """

    async def stored_models(self) -> Sequence[StoredModel]:
        """Return the models of the store, sorted by name; empty unless the operator asks.

        New in 1.28.
        """

    def pull_model(self, name: str) -> AsyncGenerator[PullProgress, None]:
        """Fetch a model into the store, or join the pull of it that is running.

        A pull is stopped when all of its generators are closed, as ``contextlib.aclosing`` does. A
        slow reader gets the latest progress of each file. New in 1.28.

        Args:
            name: ``ORG/NAME``, ``ORG/NAME@REVISION`` or ``ORG/NAME:QUANTIZATION``.

        Raises:
            Refusal: the name is none, the model cannot be fetched, or another than the operator
                asks.
        """

    async def delete_model(self, name: str) -> None:
        """Delete a model from the store. New in 1.28.

        Raises:
            Refusal: it is not there, is being served or pulled, or another than the operator asks.
        """
