"""What the model says: the pieces of an answer, what it took, and vectors."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any, NamedTuple, Protocol

from gatewayd_hooks.parsing import Part


class Usage(NamedTuple):
    """Tokens of an answer so far."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int


class Timing(NamedTuple):
    """Where an answer's time went, in seconds; 0 for what has not begun.

    Attributes:
        queue: until the engine admitted it.
        prefill: from there to the first token.
        decode: from there to the last token.
        total: since the request came.
    """

    queue: float
    prefill: float
    decode: float
    total: float


class Delta(NamedTuple):
    """What has come to one choice since the last time.

    Attributes:
        choice: which, from 0.
        parts: in order; may be empty at the end.
        finish_reason: ``stop``, ``length`` or ``tool_calls`` once it has ended.
        stop: the stop string that ended it, or None.
        logprobs: OpenAI's objects for the tokens of ``parts``; empty unless asked for.
    """

    choice: int
    parts: Sequence[Part]
    finish_reason: str | None = None
    stop: str | None = None
    logprobs: Sequence[dict[str, Any]] = ()


class ChatAnswer(Protocol):
    """An answer that is being generated.

    Attributes:
        id: of the answer, ``chatcmpl-...``.
        model: the name that was asked for.
        created: Unix time.
    """

    id: str
    model: str
    created: int

    def __aiter__(self) -> AsyncIterator[Delta]:
        """What comes, until every choice has ended; to be read once.

        Raises:
            Refusal: it failed.
        """

    @property
    def usage(self) -> Usage:
        """So far."""

    @property
    def timing(self) -> Timing:
        """So far."""

    def close(self) -> None:
        """Nobody reads any more: the engine stops. May be repeated."""


class Embeddings(NamedTuple):
    """Vectors of texts.

    Attributes:
        vectors: in the order of the texts.
        usage: of all of them.
        timing: of the whole.
    """

    vectors: Sequence[Sequence[float]]
    usage: Usage
    timing: Timing
