"""What the gateway does for protocols.

The common language is OpenAI's: ``Gateway.chat`` takes the body of ``POST /v1/chat/completions`` as
a dictionary and refuses what that route would refuse.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from gatewayd_hooks.requests.answers import ChatAnswer, Embeddings
from gatewayd_hooks.requests.http import HttpRequest

T = TypeVar("T")


class ServedModel(NamedTuple):
    """What is known of the model.

    Attributes:
        created: Unix time at which it began to be served.
        architecture: its class, such as ``LlamaForCausalLM``.
        num_parameters: of it.
        dtype: of its weights, such as ``bfloat16``.
        context_length: tokens of a prompt with its answer.
        chat_template: jinja2; empty for a model that cannot chat.
        calls_tools: whether a parser for its tool calls is there.
        reasons: whether a parser for its reasoning is there.
    """

    created: int
    architecture: str
    num_parameters: int
    dtype: str
    context_length: int
    chat_template: str
    calls_tools: bool
    reasons: bool


class Gateway(Protocol):
    """What the gateway does for protocols.

    Attributes:
        version: of the daemon.
    """

    version: str

    @property
    def models(self) -> Sequence[str]:
        """Names of what is served, of those that the request's key may know of."""

    @property
    def model(self) -> ServedModel | None:
        """What stands behind all names; None until an engine has loaded it."""

    async def read(self, request: HttpRequest, make: Callable[[dict[str, Any]], T]) -> T:
        """Parse a body and make something of it; of a large one beside the event loop.

        Args:
            request: whose body it is.
            make: is given ``request.json()``, perhaps in a thread; it should not keep it.

        Raises:
            Refusal: the body is no object, or ``make`` refuses it.
        """

    async def chat(self, body: Mapping[str, Any], request: HttpRequest) -> ChatAnswer:
        """Begin to answer a conversation.

        Args:
            body: as of ``POST /v1/chat/completions``; ``stream`` says whether what comes is shown
                before the end.
            request: whose client is watched: if it leaves, the answer ends.

        Raises:
            Refusal: as that route would.
        """

    async def count_tokens(self, body: Mapping[str, Any]) -> int:
        """Tokens of the prompt that ``chat`` would make of this body.

        They may be more than the context; of texts over a million characters they are not counted.

        Raises:
            Refusal: as that route would, but for the length.
        """

    async def generate(self, body: Mapping[str, Any], request: HttpRequest) -> ChatAnswer:
        """Begin to continue a text: as ``chat``, with a body of ``POST /v1/completions``.

        Without ``max_tokens`` the answer may fill the context, as in a chat.
        """

    async def embed(self, body: Mapping[str, Any], request: HttpRequest) -> Embeddings:
        """Make vectors of texts.

        Args:
            body: as of ``POST /v1/embeddings``; ``encoding_format`` changes nothing.
            request: whose client is watched: if it leaves, the work ends.

        Raises:
            Refusal: as that route would.
        """
