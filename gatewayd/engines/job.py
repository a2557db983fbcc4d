"""A submitted request and its choices, as the fleet keeps them until they end."""

from __future__ import annotations

import logging
import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from gatewayd.engines.api import EngineRequest, TokenSink
from gatewayd.engines.prompt_usage import PromptUsage, SequenceUsage
from gatewayd.errors import GatewayError
from gatewayd.tracing import request_trace
from gatewayd.tracing.request_trace import RequestTrace
from gatewayd.tracing.timeline import Timeline

_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class SequenceSlot:
    """One sequence of a job.

    Attributes:
        job: what it belongs to.
        index: its place among the job's choices.
        sink: who receives its tokens.
        timeline: where its time goes.
        sequence: its id at the engine that has it now.
        is_queued: whether it waits in that engine's queue.
        is_started: whether it has got tokens.
        is_scored: whether its sink was told log-probabilities or hidden states of the prompt,
            perhaps not all.
        was_admitted: whether its sink was told that it left the queue.
        is_over: ended or cancelled; its sink is not called any more.
        spent: seconds that it took of engines, by its share of the tokens of their steps; of one
            that was lost, nothing.
        reached: tokens of its prompt that were computed or cached, as far as anybody was told.
        cached: of these, found in the prefix cache of the first engine that admitted it.
        generated: tokens, by its last engine; 0 until that has told.
        is_settled: whether that is all. One that was cancelled may be in a step yet.
    """

    job: EngineJob
    index: int
    sink: TokenSink
    timeline: Timeline
    sequence: int = -1
    is_queued: bool = False
    is_started: bool = False
    is_scored: bool = False
    was_admitted: bool = False
    is_over: bool = False
    spent: float = 0.0
    reached: int = 0
    cached: int = 0
    generated: int = 0
    is_settled: bool = False

    def admit(self, cached: int) -> bool:
        """It left the queue of an engine; False if it had left another's before."""
        is_first = not self.was_admitted
        if is_first:
            self.was_admitted, self.cached = True, cached
        return is_first

    def settle(self, took: SequenceUsage | None = None) -> None:
        """It takes nothing of an engine any more.

        Args:
            took: what it took of the one that had it last; None if that does not tell.
        """
        if self.is_settled:
            return
        if took is not None:
            self.spent += took.seconds
            self.reached = max(self.reached, took.prompt_tokens)
            self.generated = took.generated
            self.admit(took.cached_tokens)
        self.is_settled = True
        self.job.note_settled()

    def call(self, method: Callable[..., None], *args: object) -> bool:
        """Call a method of the sink; returns False, and logs, when it raised."""
        try:
            method(*args)
        except Exception:  # noqa: BLE001 - one sink's fault must not reach the others
            with request_trace.about(self.job.trail):
                _log.exception(
                    "request %s failed: its output sink raised", self.job.request.request_id
                )
            return False
        return True

    def fail(self, error: GatewayError) -> None:
        """Tell its sink that it failed, unless it is over."""
        if not self.is_over:
            self.is_over = True
            self.timeline.stop(time.monotonic())
            self.call(self.sink.failed, error)


@dataclass(slots=True, eq=False)
class EngineJob:
    """One request; ``choices`` keeps those that are over, as their place decides the seed.

    Attributes:
        number: order of arrival.
        request: what was asked.
        prompt: its prompt as int32 bytes, made once.
        arrived: when, seconds of ``time.monotonic``.
        trail: of the request; None if it came another way.
        choices: its sequences.
        is_waiting: whether none of them has been admitted yet; it then counts as backlog.
        losses: engines lost while they had it.
        deaths: of these, the losses that it may have caused.
        replica: index of the replica that has it; None while it is pending.
        last_replica: index of the replica that has it or had it last; None if none had it yet.
        is_held: whether an operator lets it make no progress.
        is_urgent: whether an operator has put it first in its class.
        has_deadline: whether its deadline is its own, and not that of its class.
        on_began: told once how long after its arrival its first token came; None if nobody asks.
        on_spent: told once what it took of engines; None if nobody asks.
    """

    number: int
    request: EngineRequest
    prompt: bytes
    arrived: float
    trail: RequestTrace | None = None
    choices: list[SequenceSlot] = field(default_factory=list)
    is_waiting: bool = False
    losses: int = 0
    deaths: int = 0
    replica: int | None = None
    last_replica: int | None = None
    is_held: bool = False
    is_urgent: bool = False
    has_deadline: bool = False
    on_began: Callable[[float], None] | None = None
    on_spent: Callable[[PromptUsage], None] | None = None

    @classmethod
    def make(cls, number: int, request: EngineRequest, sinks: Sequence[TokenSink]) -> EngineJob:
        """Take a request in."""
        prompt = array("i", request.prompt).tobytes()
        now = time.monotonic()
        job = cls(number, request, prompt, now, request_trace.current())
        job.choices = [SequenceSlot(job, i, sink, Timeline(now)) for i, sink in enumerate(sinks)]
        return job

    @property
    def prompt_len(self) -> int:
        """Tokens of its prompt."""
        return len(self.request.prompt)

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to do."""
        return all(choice.is_over for choice in self.choices)

    @property
    def is_started(self) -> bool:
        """Whether a choice that goes on has got tokens."""
        return any(choice.is_started and not choice.is_over for choice in self.choices)

    def begin(self) -> None:
        """It has got its first token; what a lost engine had delayed tells nobody anything."""
        tell, self.on_began = self.on_began, None
        if tell is not None and not self.losses:
            tell(time.monotonic() - self.arrived)

    def settle(self) -> None:
        """No engine has it: what is over of it takes nothing any more."""
        for choice in self.choices:
            if choice.is_over:
                choice.settle()

    def note_settled(self) -> None:
        """One of its choices is settled."""
        if self.on_spent is not None and all(choice.is_settled for choice in self.choices):
            tell, self.on_spent = self.on_spent, None
            tell(self.taken)

    @property
    def taken(self) -> PromptUsage:
        """What it took of engines, as far as they have told."""
        choices = self.choices
        prompt = min(self.prompt_len, max([choice.reached for choice in choices]))
        # The first that ran found what was there; those behind it found what it had computed.
        cached = next((choice.cached for choice in choices if choice.reached), 0)
        return PromptUsage(
            sum([choice.spent for choice in choices]),
            prompt,
            min(cached, prompt),
            tuple([choice.generated for choice in choices]),
        )

    def fail(self, error: GatewayError) -> None:
        """Fail every choice that goes on."""
        for choice in self.choices:
            choice.fail(error)

    def restart(self) -> None:
        """Forget what the lost engine had made of it."""
        for choice in self.choices:
            if (choice.is_started or choice.is_scored) and not choice.is_over:
                choice.is_started = choice.is_scored = False
                choice.call(choice.sink.restarted)
