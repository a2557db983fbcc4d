"""Response of a generation as protocol plugins read it: deltas of each choice."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial

from gatewayd.errors import ClientGone, EngineUnavailable, GatewayError, QueueFull
from gatewayd.fairness.queue_capacity import QueueCapacity
from gatewayd.http.asgi import Header
from gatewayd.http.openai.answer_headers import answer_headers
from gatewayd.http.openai.chat_wire import chat_logprobs
from gatewayd.http.openai.large_answers import is_large, run_in_thread
from gatewayd.http.openai.prompt_logprobs import pop_prompt_logprobs
from gatewayd.http.openai.wire import Identity, local
from gatewayd.http.protocols.answer_tokens import AnswerTokenReader
from gatewayd.pipeline.choice import Choice
from gatewayd.pipeline.choice_types import RelayedToken, ScoredToken
from gatewayd.pipeline.generation import Generation
from gatewayd.text.tokenizer import Tokenizer
from gatewayd_hooks.parsing import Part
from gatewayd_hooks.protocols import AnswerToken, Delta, RequestRefusal, Timing, Usage


class ProtocolAnswer:
    """Implements ``gatewayd_hooks.protocols.ChatAnswer``; its own iterator.

    Output is popped from a choice only when the next delta is requested: for a slow reader it is
    buffered there as text, and returned as one delta.
    """

    __slots__ = (
        "_choices",
        "_generation",
        "_headers",
        "_identity",
        "_is_closed",
        "_is_over",
        "_open",
        "_ready",
        "_room",
        "_texts",
        "_timing",
        "_tokenizer",
        "created",
        "id",
        "model",
    )

    def __init__(
        self,
        generation: Generation,
        identity: Identity,
        tokenizer: Tokenizer | None,
        room: Callable[[], QueueCapacity],
    ) -> None:
        """Read a generation.

        Args:
            generation: a started generation.
            identity: of the response.
            tokenizer: of the model; None for an upstream's.
            room: returns the current capacity of the queue.
        """
        self.id = identity.id
        self.model = identity.model
        self.created = identity.created
        self._identity = identity
        self._tokenizer = tokenizer
        self._generation = generation
        # A closed generation releases its choices, but their usage is read later.
        self._choices = self._open = tuple(generation.choices)
        self._ready: deque[Delta] = deque()
        self._texts: dict[int, AnswerTokenReader] = {}
        self._room = room
        self._timing: Timing | None = None
        self._headers: list[Header] = []
        self._is_closed = self._is_over = False

    def __aiter__(self) -> AsyncIterator[Delta]:
        """See ``ChatAnswer``."""
        return self

    async def __anext__(self) -> Delta:
        """Wait for the next delta."""
        ready, generation = self._ready, self._generation
        while not ready:
            if self._is_over:
                if generation.error is not None:
                    raise refusal_of(generation.error)
                raise StopAsyncIteration
            if not generation.output.is_awake:  # wait(), without a coroutine for each piece
                await generation.output.waiter()
            generation.output.is_awake = False
            if generation.is_abandoned:
                raise ClientGone
            scored = self._collect()
            # `ready` was empty, so indices of `scored` are indices of its deltas.
            for at, tokens in enumerate(scored) if scored else ():
                write = partial(self._with_logprobs, ready[at], tokens)
                ready[at] = await run_in_thread(write) if is_large(generation) else write()
        return ready.popleft()

    def _with_logprobs(self, delta: Delta, scored: Sequence[ScoredToken | RelayedToken]) -> Delta:
        logprobs = chat_logprobs(self._tokenizer, scored)
        if not self._identity.with_ids:
            return delta._replace(logprobs=logprobs)
        texts = self._texts.get(delta.choice)
        if texts is None:
            reader = AnswerTokenReader(local(self._tokenizer))
            texts = self._texts[delta.choice] = reader
        # Upstreams are never asked for ids.
        tokens = [one for one in scored if isinstance(one, ScoredToken)]
        return delta._replace(logprobs=logprobs, tokens=texts.read(tokens))

    def _collect(self) -> list[Sequence[ScoredToken | RelayedToken]]:
        """Collect deltas of all new output.

        Returns:
            The scored tokens of each delta, if log-probabilities are requested.
        """
        # Output that arrived before an error is returned before it.
        self._is_over = self._generation.error is not None
        scored: list[Sequence[ScoredToken | RelayedToken]] = []
        num_done = 0
        for choice in self._open:
            is_done = choice.is_done
            parts = choice.pop_parts()
            if parts or is_done:
                self._ready.append(_delta(choice, parts))
                if self._identity.with_logprobs:
                    scored.append(choice.pop_scored_tokens())
            num_done += is_done
        if num_done:
            self._open = tuple([choice for choice in self._open if not choice.is_done])
            self._is_over |= not self._open
        return scored

    @property
    def usage(self) -> Usage:
        """See ``ChatAnswer``."""
        firsts = self._choices[:: self._generation.work.num_choices]
        return Usage(
            self._generation.prompt_tokens,
            sum([choice.completion_tokens for choice in self._choices]),
            sum([choice.cached_tokens for choice in firsts]),
        )

    @property
    def reasoning_tokens(self) -> int:
        """Number of reasoning tokens generated so far."""
        return sum([choice.reasoning_tokens for choice in self._choices])

    @property
    def timing(self) -> Timing:
        """See ``ChatAnswer``."""
        if self._timing is not None:
            return self._timing
        generation = self._generation
        spans = generation.timing
        total = generation.clock() - generation.work.arrival
        return Timing(spans.queue or 0.0, spans.prefill or 0.0, spans.decode or 0.0, total)

    def pop_scored_prompt(self) -> Sequence[AnswerToken]:
        """See ``ChatAnswer``."""
        generation = self._generation
        scored = pop_prompt_logprobs(generation, 0)
        if not scored:
            return []
        return AnswerTokenReader(local(self._tokenizer)).read_prompt(
            generation.work.requests[0].prompt, scored
        )

    def headers(self) -> list[Header]:
        """Return the usual response headers, as of the time of the close."""
        return self._headers or answer_headers(self._generation, self._room())

    def abandon(self) -> None:
        """Cancel the generation and stop iteration because the client disconnected."""
        self._generation.abandon()

    def fail(self, error: GatewayError) -> None:
        """Fail the generation because writing failed; no effect if it is complete."""
        if not self._generation.is_done:
            self._generation.fail(error)

    def close(self) -> None:
        """See ``ChatAnswer``."""
        if not self._is_closed:
            self._is_closed = self._is_over = True
            # Both are read from the choices, which the generation drops when it is closed.
            self._timing = self.timing
            self._headers = self.headers()
            self._generation.close()


def _delta(choice: Choice, parts: Sequence[Part]) -> Delta:
    stop = choice.stop_reason
    text = stop if isinstance(stop, str) else None
    return Delta(choice.index, parts, choice.finish_reason, text)


def refusal_of(error: GatewayError) -> RequestRefusal:
    """Convert a gateway error to the plugin contract's error."""
    retry_after = error.retry_after
    if retry_after is None and isinstance(error, QueueFull | EngineUnavailable):
        retry_after = 1.0
    return RequestRefusal(
        error.status,
        error.message,
        type=error.type,
        code=error.code,
        param=error.param,
        retry_after=retry_after,
    )
