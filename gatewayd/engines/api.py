"""The seam between the HTTP side and the engines: what is asked, and what comes back.

The HTTP side makes an ``EngineRequest`` and one ``TokenSink`` per choice and gives both to
``Fleet.submit``. The fleet calls the sinks from the event loop, synchronously, as frames arrive:
``admitted`` at most once, ``computed``, ``preempted`` and ``tokens`` any number of times, then
``finished`` or ``failed`` exactly once. After ``cancel`` nothing is called.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from gatewayd.engines.prompt_usage import PromptUsage
from gatewayd.errors import GatewayError
from gatewayd.fairness.queue_capacity import QueueCapacity
from gatewayd.tracing.timeline import Timeline
from gatewayd_engine.process.engine_stats import EngineStats
from gatewayd_engine.process.inspect_messages import MachineLook
from gatewayd_engine.process.messages import ModelInfo, SamplingParams, StrategyRow, TokenLogprobs
from gatewayd_hooks.caching import NORMAL_PRIORITY


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """Work for an engine.

    Attributes:
        request_id: the gateway's id, for logs.
        prompt: prompt ids, at least one.
        params: checked sampling parameters.
        salt: the prefix cache's salt.
        cache_key: the client's name for what shares a beginning, for routers.
        priority: ``Priority`` as a number.
        tenant: whose it is; empty without tenants.
        weight: what is due to the tenant, as ratio to others.
        deadline: seconds from arrival to the first token that is wanted; None for what its class
            has as target.
        retention: eviction priority of its pages, and for how many seconds after their last use.
        retry_started: whether the client has seen nothing until the end, so that the request
            may start over on another engine although it has generated tokens.
        guide_param: the field that says what the answer must follow, for errors.
        class_param: the field that decides its class, for offers.
        length_param: the field that says how long its answer may be, for offers.
    """

    request_id: str
    prompt: Sequence[int]
    params: SamplingParams
    salt: bytes = b""
    cache_key: str = ""
    priority: int = 1
    tenant: str = ""
    weight: float = 1.0
    deadline: float | None = None
    retention: tuple[int, float] = (NORMAL_PRIORITY, 0.0)
    retry_started: bool = False
    guide_param: str | None = None
    class_param: str = "service_tier"
    length_param: str = "max_tokens"


class TokenSink(Protocol):
    """One choice of a request; receives what its sequence generates."""

    def admitted(self, cached_tokens: int, queue_seconds: float) -> None:
        """It left the engine's queue; ``cached_tokens`` prompt tokens were in the cache."""

    def computed(self, tokens: int) -> None:
        """So many tokens of its prompt are computed, or were in the cache; told chunk by chunk."""

    def preempted(self) -> None:
        """It had to give up its memory for others, and waits again; may be repeated."""

    def prompt_logprobs(self, logprobs: Sequence[TokenLogprobs]) -> None:
        """Log-probabilities of prompt tokens, in order; only if they were asked for."""

    def pooled(self, count: int, vector: bytes) -> None:
        """The sum of some prompt tokens' hidden states, float32; only if they were asked for."""

    def tokens(self, ids: Sequence[int], logprobs: Sequence[TokenLogprobs] | None) -> None:
        """New tokens."""

    def restarted(self) -> None:
        """The engine was lost and the sequence starts over: forget what came so far."""

    def finished(self, reason: str, stop_token: int | None) -> None:
        """It ended: ``stop``, ``length`` or ``abort``."""

    def failed(self, error: GatewayError) -> None:
        """It ended with an error."""


class Handle(Protocol):
    """A submitted request."""

    def cancel(self, choice: int | None = None) -> None:
        """Stop one choice, or all; their pages are free within a step. May be repeated."""

    @property
    def replica(self) -> int | None:
        """Index of the replica that has it or had it last; None if none had it yet."""

    def when_spent(self, tell: Callable[[PromptUsage], None]) -> None:
        """Tell once what it took of engines: their time, and the tokens that they computed.

        At once where that is known: its engine says so when a sequence has ended, and when one
        that was cancelled is out of the last step. If the engine is lost, what it had told.
        """

    @property
    def taken(self) -> PromptUsage:
        """The same as far as it is known now."""

    @property
    def timelines(self) -> Sequence[Timeline]:
        """Where the time of each choice went, in their order."""


class ReplicaState(StrEnum):
    """Where a replica is in its life."""

    STARTING = "starting"
    READY = "ready"
    RESTARTING = "restarting"
    UNLOADED = "unloaded"
    FAILED = "failed"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    """One replica, as ``/readyz?verbose=1`` shows it.

    Attributes:
        index: its number.
        state: where it is in its life.
        pid: of the engine process; None when there is none.
        uptime_seconds: since it became ready.
        restarts: engines lost so far.
        detail: progress while starting, or why it failed or is unloaded.
        model: what it serves, once known.
        stats: after its last step.
        strategies: what they have cost since its start, as of a second ago.
        load_seconds: that the engine took to load; 0 before the first has.
        machine: what it takes of its machine, as it said when it was last looked at.
    """

    index: int
    state: ReplicaState
    pid: int | None
    uptime_seconds: float
    restarts: int
    detail: str
    model: ModelInfo | None
    stats: EngineStats = field(default_factory=EngineStats)
    strategies: Sequence[StrategyRow] = ()
    load_seconds: float = 0.0
    machine: MachineLook | None = None


class Fleet(Protocol):
    """All engine replicas of the daemon."""

    def submit(self, request: EngineRequest, sinks: Sequence[TokenSink]) -> Handle:
        """Queue a request on a replica, now or as soon as one is ready.

        ``len(sinks)`` choices share one prompt.

        Raises:
            QueueFull: the caps on waiting requests or prompt tokens are reached.
            EngineUnavailable: no replica will become ready again.
        """

    def status(self) -> Sequence[ReplicaStatus]:
        """Every replica, in order."""

    async def look(self) -> None:
        """Ask the engines how they are, with little patience; ``status`` tells what they said."""

    @property
    def model(self) -> ModelInfo | None:
        """What is served; None until a replica was ready once."""

    async def wait_model(self) -> None:
        """Wait, as a request in the queue, until ``model`` is known.

        Raises:
            QueueFull: the cap on waiting requests is reached.
            EngineUnavailable: no replica will become ready.
        """

    @property
    def room(self) -> QueueCapacity:
        """What may wait yet."""

    @property
    def num_pending(self) -> int:
        """Sequences that no replica has: none is ready, or theirs was lost."""

    @property
    def is_ready(self) -> bool:
        """Whether a request sent now would be served now."""

    @property
    def condition(self) -> str:
        """``ready``; or why a request would not be: ``paused``, ``unloaded``, ``not_ready``."""
