"""Interface between the HTTP side and the engines: requests, token sinks and the fleet.

The HTTP side creates an ``EngineRequest`` and one ``TokenSink`` per choice and passes both to
``Fleet.submit``. The fleet calls the sinks from the event loop, synchronously, as frames arrive:
``admitted`` at most once, ``computed``, ``preempted`` and ``tokens`` any number of times, then
``finished`` or ``failed`` exactly once. After ``cancel`` nothing is called.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

import msgspec

from gatewayd.engines.prompt_usage import PromptUsage
from gatewayd.errors import GatewayError
from gatewayd.fairness.queue_capacity import QueueCapacity
from gatewayd.tracing.timeline import Timeline
from gatewayd_engine.process.engine_stats import EngineStats
from gatewayd_engine.process.inspect_messages import MachineStats
from gatewayd_engine.process.messages import ModelInfo, SamplingParams, StrategyRow, TokenLogprobs
from gatewayd_hooks.caching import NORMAL_PRIORITY
from gatewayd_hooks.requests.answers import Delta
from gatewayd_hooks.upstreams import UpstreamCall, UpstreamCounts

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class Relay(msgspec.Struct, frozen=True):
    """What is relayed to an upstream.

    Attributes:
        call: the request.
        likely_tokens: of the prompt, as charged if the upstream reports no token counts.
    """

    call: UpstreamCall
    likely_tokens: int


class EngineRequest(msgspec.Struct, frozen=True):
    """A request for an engine.

    Attributes:
        request_id: id given by the gateway, for logs.
        prompt: prompt token ids, at least one; for an upstream, which has the tokenizer, a range of
            their maximum number.
        params: validated sampling parameters.
        salt: salt of the prefix-cache keys.
        cache_key: the client's name for requests with a common prefix, for routers.
        priority: ``Priority`` as a number.
        tenant: tenant of the request; empty without tenants.
        weight: the tenant's share in fair scheduling, relative to others.
        deadline: target for the time to first token, seconds from arrival; None for that of its
            class.
        retention: eviction priority of its KV pages, and for how many seconds after their last use.
        retry_started: whether nothing is sent to the client before the end, so that the request may
            be retried on another engine although it has generated tokens.
        has_other_target: whether another target may answer, so that nothing is retried on this one.
        guide_param: field with the grammar of the output, for errors.
        class_param: field that sets the priority class, for offers.
        length_param: field that sets the maximum output length, for offers.
        relay: of a request to an upstream; None for engines.
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
    has_other_target: bool = False
    guide_param: str | None = None
    class_param: str = "service_tier"
    length_param: str = "max_tokens"
    relay: Relay | None = None


class TokenSink(Protocol):
    """Receiver of the output of one choice of a request."""

    def admitted(self, cached_tokens: int, queue_seconds: float) -> None:
        """Report that it left the engine's queue, with the number of cached prompt tokens."""

    def computed(self, tokens: int) -> None:
        """Report how many prompt tokens are computed or were cached, chunk by chunk."""

    def preempted(self) -> None:
        """Report that it was preempted: its KV pages were freed and it waits again; may repeat."""

    def prompt_logprobs(self, logprobs: Sequence[TokenLogprobs]) -> None:
        """Deliver log-probabilities of prompt tokens, in order; only if requested."""

    def pooled(self, count: int, vector: bytes) -> None:
        """Deliver the sum of some prompt tokens' hidden states, float32; only if requested."""

    def tokens(self, ids: Sequence[int], logprobs: Sequence[TokenLogprobs] | None) -> None:
        """Deliver new tokens."""

    def restarted(self) -> None:
        """Discard all output so far: the engine was lost and the sequence starts over."""

    def finished(self, reason: str, stop_token: int | None) -> None:
        """Report the end: ``stop``, ``length`` or ``abort``."""

    def failed(self, error: GatewayError) -> None:
        """Report the end with an error."""


class RelaySink(TokenSink, Protocol):
    """Receiver of one choice of a request with a ``relay``.

    It gets ``admitted`` at most once, ``relayed`` and ``counted`` any number of times, and
    ``failed`` at most once; the delta with a finish reason is its last. Of a request for
    embeddings it gets ``embedded`` once before that.
    """

    def relayed(self, delta: Delta) -> None:
        """Deliver new output."""

    def embedded(self, vectors: NDArray[np.float64]) -> None:
        """Deliver the embeddings of all inputs, shape ``[inputs, dimensions]``."""

    def counted(self, prompt: UpstreamCounts | None, completion_tokens: int | None) -> None:
        """Report token counts: of the request, for its first choice, and of this choice."""


class Handle(Protocol):
    """A submitted request: cancellation and accounting."""

    def cancel(self, choice: int | None = None) -> None:
        """Cancel one choice, or all; their pages are freed within a step. Idempotent."""

    @property
    def replica(self) -> int | None:
        """Index of the present or last replica; None if it never had one."""

    def on_usage_final(self, tell: Callable[[PromptUsage], None]) -> None:
        """Report its engine time and computed tokens once, when they are final.

        Called at once if they are known already. An engine reports them when a sequence has ended,
        and for a cancelled one after its last step. If the engine is lost, as far as reported.
        """

    @property
    def usage(self) -> PromptUsage:
        """Engine time and computed tokens as far as known now."""

    @property
    def timelines(self) -> Sequence[Timeline]:
        """Breakdown of the time of each choice, in order of the choices."""


class ReplicaState(StrEnum):
    """Lifecycle state of a replica."""

    STARTING = "starting"
    READY = "ready"
    RESTARTING = "restarting"
    UNLOADED = "unloaded"
    FAILED = "failed"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    """Status of a replica, as in ``/readyz?verbose=1``.

    Attributes:
        index: its number.
        state: its lifecycle state.
        pid: process id of the engine; None without one.
        uptime_seconds: seconds since it became ready.
        restarts: number of engines lost so far.
        detail: progress while starting, or the reason of a failure or unload.
        model: the served model, once known.
        stats: statistics after its last step.
        strategies: cost of its strategies since its start, up to a second old.
        load_seconds: load time of the engine; 0 before the first has loaded.
        machine: its resource usage at the last inspection.
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
    machine: MachineStats | None = None


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
        """Status of each replica, in order."""

    async def refresh_stats(self) -> None:
        """Refresh the engines' statistics, within a short timeout; ``status`` returns them."""

    @property
    def model(self) -> ModelInfo | None:
        """The served model; None until a replica was ready once."""

    async def wait_model(self) -> None:
        """Wait, counted as a queued request, until ``model`` is known, and wake sleeping engines.

        Raises:
            QueueFull: the limit on waiting requests is reached.
            EngineUnavailable: no replica will become ready.
        """

    @property
    def room(self) -> QueueCapacity:
        """Remaining capacity of the queue."""

    @property
    def load_seconds(self) -> float:
        """Forecast of the time until the model is loaded; 0 once it is."""

    @property
    def num_pending(self) -> int:
        """Sequences without a replica: none is ready, or theirs was lost."""

    @property
    def is_ready(self) -> bool:
        """Whether a request sent now would be served."""

    @property
    def condition(self) -> str:
        """``ready``, ``asleep``, or why none is served: ``paused``, ``unloaded``, ``not_ready``."""
