"""Fake fleet without engines: each request is answered by a script."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from gatewayd.engines.api import EngineRequest, ReplicaState, ReplicaStatus, TokenSink
from gatewayd.engines.prompt_usage import PromptUsage
from gatewayd.errors import EngineUnavailable, GatewayError
from gatewayd.fairness.queue_capacity import QueueCapacity
from gatewayd.tracing.timeline import Timeline
from gatewayd_engine.process.engine_stats import EngineStats
from gatewayd_engine.process.inspect_messages import MachineStats
from gatewayd_engine.process.messages import ModelInfo, TokenLogprobs

VOCAB_SIZE = 4096
CONTEXT = 2048
HIDDEN_SIZE = 12


def model_info(max_model_len: int = CONTEXT) -> ModelInfo:
    return ModelInfo(
        architecture="LlamaForCausalLM",
        num_parameters=11_000_000,
        dtype="float32",
        device="cpu",
        vocab_size=VOCAB_SIZE,
        max_model_len=max_model_len,
        eos_token_ids=[0, 2],
        num_pages=1000,
        page_size=16,
        max_running=64,
        max_batch_tokens=2048,
        hidden_size=HIDDEN_SIZE,
    )


@dataclass
class Job:
    """A submitted request as its script sees it."""

    request: EngineRequest
    sinks: Sequence[TokenSink]
    cancelled: set[int] = field(default_factory=set)
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None
    replica: int | None = 0
    timelines: Sequence[Timeline] = ()
    cached: int | None = None  # None until its prompt was computed
    is_silent: bool = False  # does not say yet what it took
    tell: Callable[[PromptUsage], None] | None = None

    def cancel(self, choice: int | None = None) -> None:
        self.cancelled.update(range(len(self.sinks)) if choice is None else [choice])
        if len(self.cancelled) == len(self.sinks):
            self.gone.set()

    def on_usage_final(self, tell: Callable[[PromptUsage], None]) -> None:
        if self.is_silent:
            self.tell = tell
        else:
            tell(self.usage)

    @property
    def usage(self) -> PromptUsage:
        nothing = (0,) * len(self.sinks)
        if self.cached is None:
            return PromptUsage(generated=nothing)
        return PromptUsage(0.25, len(self.request.prompt), self.cached, nothing)

    def compute(self, cached: int = 0) -> None:
        """The prompt, as engines tell of it."""
        self.cached = cached
        for sink in self.live():
            sink.admitted(cached, 0.001)
            sink.computed(len(self.request.prompt))

    def live(self) -> list[TokenSink]:
        return [sink for at, sink in enumerate(self.sinks) if at not in self.cancelled]

    def score(self, tokens: Sequence[int]) -> list[TokenLogprobs] | None:
        """Made-up log-probabilities: the token itself and its neighbours."""
        wanted = self.request.params.logprobs
        if wanted is None:
            return None
        return [scored(token, wanted) for token in tokens]


def scored(token: int, wanted: int) -> TokenLogprobs:
    top = [(token + at) % VOCAB_SIZE for at in range(wanted)]
    return TokenLogprobs(
        sequence=0,
        token=token,
        logprob=-0.5,
        rank=1,
        top_tokens=top,
        top_logprobs=[-0.5 - at for at in range(wanted)],
    )


Script = Callable[[Job], Awaitable[None]]


def says(
    ids: Sequence[int],
    *,
    reason: str | None = None,
    stop_token: int | None = 2,
    delay: float = 0.0,
    cached: int = 0,
    step: int = 1,
) -> Script:
    """Each choice generates these ids, a step at a time, up to its max_tokens."""

    async def script(job: Job) -> None:
        limit = min(len(ids), job.request.params.max_tokens)
        job.compute(cached)
        if (prompt := job.request.params.prompt_logprobs) is not None:
            job.sinks[0].prompt_logprobs([scored(i, prompt) for i in job.request.prompt[1:]])
        for at in range(0, limit, step):
            await asyncio.sleep(delay)
            chunk = list(ids[at : min(at + step, limit)])
            for sink in job.live():
                sink.tokens(chunk, job.score(chunk))
        await asyncio.sleep(0)
        for sink in job.live():
            if limit < len(ids) or reason == "length":
                sink.finished("length", None)
            else:
                sink.finished(reason or "stop", stop_token)

    return script


def after(go: asyncio.Event, script: Script) -> Script:
    """The same, once the event is set."""

    async def waiting(job: Job) -> None:
        await go.wait()
        await script(job)

    return waiting


def fails(error: GatewayError, after: Sequence[int] = ()) -> Script:
    """Every choice fails, perhaps after some tokens."""

    async def script(job: Job) -> None:
        if after:
            job.compute()
        for token in after:
            for sink in job.live():
                sink.tokens([token], job.score([token]))
            await asyncio.sleep(0.01)
        for sink in job.live():
            sink.failed(error)

    return script


async def hangs(job: Job) -> None:
    """Nothing ever comes."""
    await job.gone.wait()


def hangs_after(ids: Sequence[int]) -> Script:
    """Some tokens, then nothing."""

    async def script(job: Job) -> None:
        job.compute()
        for sink in job.live():
            sink.tokens(list(ids), job.score(ids))
        await job.gone.wait()

    return script


class FakeFleet:
    """A ``Fleet`` whose next answers are what ``script`` says."""

    def __init__(self, script: Script = hangs, model: ModelInfo | None = None) -> None:
        self.script = script
        self.jobs: list[Job] = []
        self.refusal: GatewayError | None = None
        self.refuses_from = 0  # the job of this number is the first that is refused
        self.is_silent = False
        self.model: ModelInfo | None = model or model_info()
        self.is_ready = True
        self.load_seconds = 0.0
        self.num_pending = 0
        self.room = QueueCapacity(10, 7, 1000, 900, 0.012)

    @property
    def condition(self) -> str:
        return "ready" if self.is_ready else "not_ready"

    async def wait_model(self) -> None:
        while self.model is None:
            await asyncio.sleep(0.005)

    def submit(self, request: EngineRequest, sinks: Sequence[TokenSink]) -> Job:
        if self.refusal is not None and len(self.jobs) >= self.refuses_from:
            raise self.refusal
        if self.model is None:
            raise EngineUnavailable("no replica will become ready")
        job = Job(request, sinks, is_silent=self.is_silent)
        self.jobs.append(job)
        job.task = asyncio.ensure_future(self.script(job))
        return job

    def status(self) -> Sequence[ReplicaStatus]:
        state = ReplicaState.READY if self.is_ready else ReplicaState.RESTARTING
        stats = EngineStats(
            step=7,
            num_running=2,
            num_waiting=3,
            free_pages=50,
            cached_pages=30,
            held_pages=20,
            tier_hits={"host": 48},
        )
        machine = MachineStats(3 << 30, 80.5, 1.5, 60 << 30, 80 << 30, 0.75)
        return [ReplicaStatus(0, state, 4321, 12.5, 1, "", self.model, stats, machine=machine)]

    async def refresh_stats(self) -> None:
        return None
