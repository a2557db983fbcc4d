"""One choice of a request: detokenizes and buffers the output of its sequence.

A ``TokenSink``. It runs synchronously inside the engine's frame handler: detokenizes, matches
stop strings, stores log-probabilities, and wakes the request once. The writer of the response
then pops all output that has been buffered since.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from gatewayd.errors import EngineUnavailable, GatewayError, NumericalError
from gatewayd.pipeline.choice_types import ChoiceOwner, RelayedToken, ScoredToken
from gatewayd.text.detokenizer import Detokenizer
from gatewayd.text.output_parts import Parsers
from gatewayd.text.stop import StopMatcher
from gatewayd_engine.process.messages import TokenLogprobs
from gatewayd_hooks.parsing import Part, Text


class ChoiceOptions(msgspec.Struct, frozen=True):
    """Options of a request that apply to each of its choices.

    Attributes:
        detokenizer: creates the detokenizer of a sequence.
        stop: stop strings.
        include_stop: whether the matched stop string is part of the text.
        min_tokens: number of first tokens in which stop strings are not matched.
        stop_token_ids: those of the request, reported as stop reason unlike the model's EOS tokens.
        keep_ids: whether token ids are returned.
        wakes: whether the response is streamed, so that text is popped before the end.
        discard: whether only the prompt is of interest and generated tokens are discarded.
        prefix: text that precedes the generated text.
        parsers: reasoning and tool-call parsers; None if all output is plain text.
        keeps_reasoning: whether an upstream's reasoning is returned.
    """

    detokenizer: Callable[[], Detokenizer]
    stop: tuple[str, ...] = ()
    include_stop: bool = False
    min_tokens: int = 0
    stop_token_ids: frozenset[int] = frozenset()
    keep_ids: bool = False
    wakes: bool = True
    discard: bool = False
    prefix: str = ""
    parsers: Parsers | None = None
    keeps_reasoning: bool = True


class Choice:
    """Output of one sequence, buffered until the response's writer pops it.

    Attributes:
        index: of the choice within the response.
        prompt_index: of its prompt, within the request.
        is_done: whether it has finished.
        is_corrupted: whether it failed because of NaN or infinite logits.
        finish_reason: ``stop`` or ``length`` once finished; ``tool_calls`` instead of ``stop`` if
            ``pop_parts`` has returned tool calls.
        stop_reason: the stop string or stop token of the request that ended it.
        completion_tokens: generated so far.
        cached_tokens: prompt tokens that were prefix-cache hits.
        queue_seconds: spent in the engine's queue; None until the engine admits it.
        num_preemptions: how often it was preempted.
        scored_prompt: log-probabilities of the prompt's tokens, if requested.
        pooled_prompt: sums of the prompt's hidden states, each with its number of tokens, if
            requested.
        first: time of its first tokens.
        last: time of its latest tokens.
        ids: token ids generated since the last ``pop_token_ids``, if requested.
    """

    __slots__ = (
        "_clock",
        "_detokenizer",
        "_feed",
        "_is_plain",
        "_observe_gap",
        "_options",
        "_owner",
        "_pending",
        "_progress",
        "_reader",
        "_scored",
        "_seen_chars",
        "_stop",
        "_taken_chars",
        "_wakes",
        "cached_tokens",
        "completion_tokens",
        "finish_reason",
        "first",
        "ids",
        "index",
        "is_corrupted",
        "is_done",
        "last",
        "num_preemptions",
        "pooled_prompt",
        "prompt_index",
        "queue_seconds",
        "scored_prompt",
        "stop_reason",
    )

    def __init__(
        self, index: int, prompt_index: int, options: ChoiceOptions, owner: ChoiceOwner
    ) -> None:
        self.index = index
        self.prompt_index = prompt_index
        self._options = options
        self._owner = owner
        self._clock = owner.clock
        self._progress = owner.progress
        self._wakes = options.wakes
        # Selects the fast path in `tokens`, which handles all new ids at once.
        self._is_plain = not (
            options.stop or options.keep_ids or options.discard or options.parsers
        )
        self.is_corrupted = False
        self.num_preemptions = 0
        self.cached_tokens = 0
        self.queue_seconds: float | None = None
        self.scored_prompt: list[TokenLogprobs] = []
        self.pooled_prompt: list[tuple[int, bytes]] = []
        self._start_over()

    def _start_over(self) -> None:
        options = self._options
        self._detokenizer = options.detokenizer()
        # Bound once, since it is called for each sequence in each step.
        self._feed = self._detokenizer.feed
        self._stop = (
            StopMatcher(options.stop, include=options.include_stop) if options.stop else None
        )
        self._reader = options.parsers.reader() if options.parsers else None
        self._pending = [options.prefix] if options.prefix else []
        self._scored: list[ScoredToken] = []
        self._seen_chars = len(options.prefix)  # decoded
        self._taken_chars = 0
        self.first: float | None = None
        self.last: float | None = None
        self.ids: list[int] = []
        self.completion_tokens = 0
        self.is_done = False
        self.finish_reason: str | None = None
        self.stop_reason: str | int | None = None

    # TokenSink: callbacks from the engine.

    def admitted(self, cached_tokens: int, queue_seconds: float) -> None:
        """Record cached tokens and queue time when the engine admits the sequence."""
        self.cached_tokens = cached_tokens
        self.queue_seconds = queue_seconds

    def computed(self, tokens: int) -> None:
        """Record the progress of the prompt's prefill."""
        if self._progress is not None:
            self._progress.computed(self.prompt_index, tokens, self.cached_tokens)

    def preempted(self) -> None:
        """Count a preemption."""
        self.num_preemptions += 1

    def prompt_logprobs(self, logprobs: Sequence[TokenLogprobs]) -> None:
        """Store log-probabilities of prompt tokens."""
        self.scored_prompt.extend(logprobs)

    def pooled(self, count: int, vector: bytes) -> None:
        """Store a partial sum of the prompt's hidden states."""
        self.pooled_prompt.append((count, vector))

    def tokens(self, ids: Sequence[int], logprobs: Sequence[TokenLogprobs] | None) -> None:
        """Detokenize new tokens, match stop strings and wake the request."""
        if self.is_done:
            return
        now = self._clock()
        if self.last is None:
            self.first = now
            # Not earlier, as the metric has a label for the replica.
            self._observe_gap = self._owner.gap_observer(self.prompt_index)
        else:
            self._observe_gap(now - self.last)
        self.last = now
        if self._is_plain and logprobs is None:
            self.completion_tokens += len(ids)
            if self._progress is not None:
                self._progress.generated(len(ids))
            text = self._feed(ids)
            # Text is empty while a character is incomplete: nothing to wake for.
            if text:
                self._pending.append(text)
                if self._wakes:
                    self._owner.wake()
            return
        # Not counted: the engine generates at least one token, but only the prompt was asked for.
        if self._options.discard:
            return
        before = self.completion_tokens
        self._tokens_one_by_one(ids, logprobs)
        if self._progress is not None:
            self._progress.generated(self.completion_tokens - before)
        if self._wakes or self.is_done:
            self._owner.wake()

    def _tokens_one_by_one(
        self, ids: Sequence[int], logprobs: Sequence[TokenLogprobs] | None
    ) -> None:
        # Tokens have their own offsets, and those after a stop string do not count.
        for at, token in enumerate(ids):
            start, opens = self._seen_chars, self._detokenizer.is_opening
            text = self._detokenizer.feed((token,))
            self._seen_chars += len(text)
            self.completion_tokens += 1
            if self._options.keep_ids:
                self.ids.append(token)
            if logprobs is not None:
                self._scored.append(ScoredToken(logprobs[at], start, self._seen_chars, opens))
            if self._stop is None or self.completion_tokens <= self._options.min_tokens:
                # Empty text as well: parsers count one piece per token.
                self._pending.append(text)
            elif self._feed_stop(text):
                self._owner.stop_choice(self.index)
                return

    def _feed_stop(self, text: str) -> bool:
        stop = self._stop
        if stop is None:
            self._pending.append(text)
            return False
        self._pending.append(stop.feed(text))
        if stop.matched is None:
            return False
        self._end("stop", stop.matched)
        return True

    def restarted(self) -> None:
        """Discard all output, because the engine was lost and the sequence starts over."""
        if self._progress is not None:
            self._progress.generated(-self.completion_tokens)
        self.scored_prompt.clear()
        self.pooled_prompt.clear()
        self._start_over()

    def finished(self, reason: str, stop_token: int | None) -> None:
        """Flush the detokenizer and stop matcher, and mark the choice as finished."""
        if self.is_done:
            return
        # Sequences that this process aborts call no sink, so the engine ended this one.
        if reason == "abort":
            self._owner.fail(EngineUnavailable("the engine dropped the request; send it again"))
            return
        if self._options.discard:
            self._end("length", None)
        # The rest of a character passes the stop matcher too, before withheld text is flushed.
        elif not self._feed_stop(self._detokenizer.finish()):
            if self._stop is not None:
                self._pending.append(self._stop.finish())
            own = stop_token is not None and stop_token in self._options.stop_token_ids
            self._end(reason, stop_token if own else None)
        self._owner.wake()

    def failed(self, error: GatewayError) -> None:
        """Fail the whole request."""
        self.is_corrupted = isinstance(error, NumericalError)
        self._owner.fail(error)

    def _end(self, reason: str, stop_reason: str | int | None) -> None:
        self.is_done = True
        self.finish_reason = reason
        self.stop_reason = stop_reason

    # For the judge of a whole answer that nothing has been popped of.

    @property
    def unread_text(self) -> str:
        """Text that is buffered."""
        return "".join(self._pending)

    @property
    def mean_logprob(self) -> float | None:
        """Mean log-probability of the buffered tokens; None without any."""
        scored = self._scored
        return sum([token.logprobs.logprob for token in scored]) / len(scored) if scored else None

    # For the writer of the response.

    def pop_text(self) -> str:
        """Return and clear the text buffered since the last call."""
        pending = self._pending
        if not pending:
            return ""
        text = pending[0] if len(pending) == 1 else "".join(pending)
        pending.clear()
        self._taken_chars += len(text)
        return text

    def pop_parts(self) -> Sequence[Part]:
        """Pop the text as parsed parts; without parsers, as one ``Text`` or none."""
        if self._reader is None:
            text = self.pop_text()
            return (Text(text),) if text else ()
        pieces, self._pending = self._pending, []
        self._taken_chars += sum(map(len, pieces))
        parts = self._reader.read(pieces, is_last=self.is_done)
        if self._reader.num_calls and self.finish_reason == "stop":
            self.finish_reason = "tool_calls"
        return parts

    @property
    def counts_reasoning(self) -> bool:
        """Whether ``reasoning_tokens`` belongs into the usage."""
        parsers = self._options.parsers
        return parsers is not None and parsers.reasoning is not None

    @property
    def reasoning_tokens(self) -> int:
        """Number of reasoning tokens among the parts popped so far."""
        if self._reader is None:
            return 0
        # The prefix and the flushed rest are pieces without a token.
        return min(self._reader.reasoning_pieces, self.completion_tokens)

    def pop_scored_tokens(self) -> Sequence[ScoredToken | RelayedToken]:
        """Pop the scored tokens of popped text; call after ``pop_text`` or ``pop_parts``.

        A token whose text is withheld, because it may become a stop string, is withheld as well;
        one whose text was removed with a stop string is never returned.
        """
        scored, limit = self._scored, self._taken_chars
        if not self.is_done:
            ready = sum(1 for token in scored if token.end <= limit)
        elif self._stop is not None and self._stop.matched is not None:
            # Text beyond `limit` was cut off with the stop string.
            ready = sum(1 for token in scored if token.start < limit)
        else:
            ready = len(scored)
        taken, self._scored = scored[:ready], scored[ready:]
        return taken

    def pop_token_ids(self) -> list[int]:
        """Return and clear the token ids since the last call."""
        taken, self.ids = self.ids, []
        return taken
