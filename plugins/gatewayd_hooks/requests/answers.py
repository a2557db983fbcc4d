"""Model output: pieces of an answer, token usage, timing, and embeddings."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any, NamedTuple, Protocol

from gatewayd_hooks.parsing import Part


class Usage(NamedTuple):
    """Token counts of an answer so far."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int


class Timing(NamedTuple):
    """Latency breakdown of an answer, in seconds; 0 for phases that have not begun.

    Attributes:
        queue: from arrival until the engine admitted it.
        prefill: from there to the first token.
        decode: from there to the last token.
        total: since the request arrived.
    """

    queue: float
    prefill: float
    decode: float
    total: float


class AnswerToken(NamedTuple):
    """Token of an answer or a prompt with its log-probability. New in 1.29.

    Attributes:
        id: of the token.
        text: what it adds to the text; empty while a character is incomplete.
        logprob: None for the first token of a prompt.
        is_special: whether it is a special token, which the answer's text omits.
        top: the most likely tokens at its position, best first; empty unless requested.
    """

    id: int
    text: str
    logprob: float | None
    is_special: bool = False
    top: Sequence[AnswerToken] = ()


class Delta(NamedTuple):
    """New output of one choice.

    Attributes:
        choice: index of the choice, from 0.
        parts: in order; may be empty at the end.
        finish_reason: ``stop``, ``length`` or ``tool_calls`` once it has ended.
        stop: the stop string that ended it, or None.
        logprobs: OpenAI's objects for the tokens of ``parts``; empty unless requested.
        tokens: the same tokens with their ids, if ``return_token_ids`` is requested as well. New in
            1.29.
    """

    choice: int
    parts: Sequence[Part]
    finish_reason: str | None = None
    stop: str | None = None
    logprobs: Sequence[dict[str, Any]] = ()
    tokens: Sequence[AnswerToken] = ()


class ChatAnswer(Protocol):
    """Answer that is being generated.

    Attributes:
        id: of the answer, ``chatcmpl-...``.
        model: the requested model name.
        created: Unix time.
    """

    id: str
    model: str
    created: int

    def __aiter__(self) -> AsyncIterator[Delta]:
        """Iterate over the output until every choice has ended; may be iterated once.

        Raises:
            Refusal: it failed.
        """

    @property
    def usage(self) -> Usage:
        """Token counts so far."""

    @property
    def timing(self) -> Timing:
        """Timing so far."""

    def pop_scored_prompt(self) -> Sequence[AnswerToken]:
        """Return the prompt's tokens once, if ``prompt_logprobs`` was requested.

        Complete with the first output; empty for a failed answer, and when called again. New in
        1.29.
        """

    def close(self) -> None:
        """Cancel generation: the output is no longer read. May be repeated."""


class Embeddings(NamedTuple):
    """Embedding vectors of texts.

    Attributes:
        vectors: in the order of the texts.
        usage: of all of them.
        timing: of the whole request.
    """

    vectors: Sequence[Sequence[float]]
    usage: Usage
    timing: Timing
