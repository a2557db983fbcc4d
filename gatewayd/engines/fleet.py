"""Fleet of engine replicas: lifecycle, admission and submission of requests."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import msgspec

from gatewayd.engines.admission_offers import check_admission
from gatewayd.engines.api import EngineRequest, ReplicaState, ReplicaStatus, TokenSink
from gatewayd.engines.backlog import Backlog, QueueLimits
from gatewayd.engines.dispatch import Dispatch
from gatewayd.engines.hot_swap import EngineSwaps
from gatewayd.engines.inspection import EngineInspection
from gatewayd.engines.job import EngineJob
from gatewayd.engines.operator_actions import EngineOperating
from gatewayd.engines.pause import Pause
from gatewayd.engines.pins import EnginePins
from gatewayd.engines.replicas.problems import problem_of
from gatewayd.engines.replicas.replica import Replica
from gatewayd.engines.replicas.setup import Launch
from gatewayd.engines.request_handle import JobHandle
from gatewayd.errors import (
    EngineUnavailable,
    GatewayError,
    ModelUnloaded,
    ServerStopping,
)
from gatewayd.fairness.queue_capacity import QueueCapacity
from gatewayd.plugins.admission import FencedAdmission
from gatewayd.plugins.router import FencedRouter
from gatewayd_engine.process.inspect_messages import Inspected, Looked
from gatewayd_engine.process.messages import (
    Evicted,
    ModelInfo,
    Pinned,
    StepOutput,
    Swapped,
    TenantQuota,
)

_STOPPING = "the daemon is stopping; try again later"
_UNLOADED = "the model is unloaded; an operator has to load it"
_BY_OPERATOR = "unloaded by an operator"
_RELOAD_SECONDS = 30.0
"""Hint for retries while the model is unloaded: the real time is unknown."""
# Interval of checks for remaining sequences, whose end has no event.
_POLL_SECONDS = 0.05


class EngineFleet:
    """Implements ``api.Fleet``; its methods are called from the event loop only.

    Attributes:
        backlog: waiting requests.
        router: selects the replica of a request.
        admission: decides which requests are admitted; None for all.
        swaps: hot swap of the engines' strategies and limits.
        deadlines: default targets for the time to first token, seconds, by ``Priority``.
        pins: pinned pages in the engines' prefix caches.
        inspection: inspection of sequences and pages.
        operating: operator actions on requests and cached pages.
        pause: pause of admission.
        demand: called when a request, or with True an operator, needs the engines of a fleet that
            sleeps; idempotent.
    """

    def __init__(
        self,
        launch: Launch,
        router: FencedRouter,
        limits: QueueLimits,
        num_replicas: int = 1,
        admission: FencedAdmission | None = None,
    ) -> None:
        self.backlog = Backlog(limits)
        self.router = router
        self.admission = admission
        self.deadlines: Sequence[float | None] = (None, None, None)
        self._replicas = [Replica(index, launch, self) for index in range(num_replicas)]
        self.swaps = EngineSwaps(self._replicas)
        self.pins = EnginePins(self._replicas)
        self.inspection = EngineInspection(self._replicas)
        self.operating = EngineOperating(self._replicas, self.backlog, lambda: self.deadlines)
        self._dispatch = Dispatch(self._replicas, self.backlog, router)
        self._numbers = itertools.count()
        self._tasks: list[asyncio.Task[None]] = []
        self.pause = Pause()
        self.demand: Callable[[bool], None] = lambda is_firm: self.wake()
        self._refusal: GatewayError | None = None
        self._is_draining = self._is_asleep = False
        self._num_submitted = 0
        self._is_loaded = asyncio.Event()  # not unloaded by an operator
        self._is_loaded.set()
        self._was_ready = asyncio.Event()
        self._is_settled = asyncio.Event()  # ready once, or will not become ready

    def set_quotas(self, quotas: list[TenantQuota]) -> None:
        """Set the KV-cache quotas of tenants in every engine, replacing all earlier ones."""
        for replica in self._replicas:
            replica.set_quotas(quotas)

    def start(self, *, is_asleep: bool = False) -> None:
        """Start the engines in the background.

        Args:
            is_asleep: whether they are loaded by the first request only; see ``sleep``.
        """
        if is_asleep:
            self._is_asleep = True
            for replica in self._replicas:
                replica.start_unloaded()
        self._tasks = [
            asyncio.create_task(replica.run(), name=f"engine {replica.index}")
            for replica in self._replicas
        ]

    async def wait_ready(self) -> None:
        """Wait until a replica is ready for the first time."""
        await self._was_ready.wait()

    async def wait_failed(self) -> str:
        """Wait until all replicas have failed or stopped for good.

        Returns:
            The reason of the last failure.
        """
        await asyncio.wait(self._tasks)
        # Raises the error of a supervisor that failed itself.
        for task in self._tasks:
            task.result()
        reason = self.failure
        # Requests that wait for the model continue, and are refused by `_check_open`.
        self._is_settled.set()
        self._dispatch.fail_all(EngineUnavailable(f"no engine serves: {reason}"))
        return reason

    def drain(self) -> None:
        """Refuse further requests; accepted ones continue, and held ones are released."""
        self._is_draining = True
        # Requests that wait for the model continue, and are refused.
        self._is_settled.set()
        self.release_held()

    def release_held(self) -> None:
        """Release requests that an operator holds, so that a drain does not wait for them."""
        for job in self._dispatch.jobs:
            if job.is_held:
                self.operating.release(job)

    def fail_remaining(self) -> None:
        """Fail every remaining request, because the daemon stops."""
        self._dispatch.fail_all(ServerStopping(_STOPPING))

    async def stop(self, save_seconds: float = 0.0) -> None:
        """Stop the engines; remaining requests fail.

        Args:
            save_seconds: time for engines to persist their prefix caches.
        """
        self.drain()
        # Before the engines end: their loss would otherwise dispatch the requests again.
        self.fail_remaining()
        for replica in self._replicas:
            replica.stop(save_seconds)
        await asyncio.gather(*self._tasks)

    async def sleep(self) -> bool:
        """Stop the engines to free their memory until ``wake``; running requests end before.

        Requests are accepted meanwhile: they wait, and ask for the model by ``demand``.

        Returns:
            Whether it sleeps; False if its engines are not loaded.
        """
        if not self.is_resident:
            return False
        self._is_asleep = self._dispatch.is_held = True
        # A held request would never end.
        self.release_held()
        while self._dispatch.num_sent:  # noqa: ASYNC110 - the end of a sequence has no event
            await asyncio.sleep(_POLL_SECONDS)
        await asyncio.gather(*(replica.unload(0.0) for replica in self._replicas))
        if self.num_pending:
            self.demand(False)
        return True

    def refuse(self, error: GatewayError) -> None:
        """Fail the requests that wait for engines which cannot be loaded."""
        self._refusal = error
        self._dispatch.fail_pending(error)
        # Those that wait for the model itself; later ones ask for it again.
        self._is_settled.set()
        if self.model is None:
            self._is_settled.clear()

    def wake(self) -> None:
        """Start the engines after ``sleep``, or after a start without any."""
        self._is_asleep = self._dispatch.is_held = False
        for replica in self._replicas:
            replica.load()

    @property
    def is_asleep(self) -> bool:
        """Whether it has no engines until a request demands them."""
        return self._is_asleep

    @property
    def is_resident(self) -> bool:
        """Whether its engines are loaded and may be put to sleep."""
        states = {replica.state for replica in self._replicas}
        # A replica that has failed, or fails again and again, does not hold up the others.
        return not self._is_asleep and (
            ReplicaState.READY in states and ReplicaState.STARTING not in states
        )

    @property
    def is_busy(self) -> bool:
        """Whether it has requests, or some wait for its model."""
        return bool(self.num_unfinished or self.backlog.num_requests)

    @property
    def is_unloaded(self) -> bool:
        """Whether an operator has unloaded it."""
        return not self._is_loaded.is_set()

    @property
    def is_over(self) -> bool:
        """Whether none of its engines will serve again."""
        return all(replica.is_over for replica in self._replicas)

    @property
    def num_submitted(self) -> int:
        """Requests that were accepted since the start."""
        return self._num_submitted

    @property
    def failure(self) -> str:
        """Reason of the last replica's failure."""
        return self._replicas[-1].detail

    async def unload(self, seconds: float) -> None:
        """Stop the engines and refuse requests until ``load``; frees the engines' memory.

        Args:
            seconds: grace period for requests at the engines; those that wait for an engine fail at
                once. Engines may persist their prefix caches in the rest of it.
        """
        # From here on requests are refused, those that wait for the model included.
        self._is_loaded.clear()
        self._is_settled.set()
        error = ModelUnloaded(_UNLOADED, retry_after=_RELOAD_SECONDS)
        self._dispatch.fail_pending(error)
        # A held request never ends.
        self.release_held()
        deadline = time.monotonic() + seconds
        # Wait for running sequences, or for `load`, which ends the unload.
        while self.num_unfinished and time.monotonic() < deadline:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._is_loaded.wait(), _POLL_SECONDS)
                return  # it was loaded again
        self._dispatch.fail_all(error)
        left = max(0.0, deadline - time.monotonic())
        await asyncio.gather(*(replica.unload(left, _BY_OPERATOR) for replica in self._replicas))
        # Its memory is free for others; `load` has to ask for it again.
        self._is_asleep = not self._is_loaded.is_set()

    def load(self) -> None:
        """Start unloaded engines again; from now on requests wait for them."""
        self._is_loaded.set()
        # Until the model is known, requests wait in `wait_model`; later they wait for an engine.
        if self.model is None and not self._is_draining:
            self._is_settled.clear()
        if self._is_asleep:
            self.demand(True)
            return
        for replica in self._replicas:
            replica.load()

    def stop_saving(self) -> None:
        """Stop the persisting of prefix caches by engines that are ending."""
        for replica in self._replicas:
            replica.stop_saving()

    def submit(self, request: EngineRequest, sinks: Sequence[TokenSink]) -> JobHandle:
        """See ``api.Fleet``.

        Raises:
            InvalidRequest: it exceeds the size of a frame.
        """
        self._check_open()
        # Queue limits hold for every admission strategy, and are cheaper to check.
        self.backlog.check(len(request.prompt))
        # A class's deadline changes with the class (`EngineOperating.bump`), its own does not.
        has_deadline = request.deadline is not None
        if not has_deadline:
            deadline = self.deadlines[request.priority]
            if deadline is not None:
                request = msgspec.structs.replace(request, deadline=deadline)
        on_began = None
        if self.admission is not None:
            serving = sum(replica.can_serve for replica in self._replicas)
            load = partial(self.backlog.load, num_replicas=serving)
            on_began = check_admission(self.admission, request, len(sinks), load, self.deadlines)
        job = EngineJob.from_request(next(self._numbers), request, sinks)
        job.on_began, job.has_deadline = on_began, has_deadline
        self._num_submitted += 1
        # Before `dispatch`, which removes a job that is too large for a frame.
        self.backlog.add(job)
        self._dispatch.dispatch(job)
        if self._is_asleep:
            self.demand(False)
        return JobHandle(self._dispatch, job)

    def _check_open(self) -> None:
        if self._is_draining:
            raise ServerStopping(_STOPPING)
        if not self._is_loaded.is_set():
            raise ModelUnloaded(_UNLOADED, retry_after=_RELOAD_SECONDS)
        self.pause.check()
        if self.is_over:
            raise EngineUnavailable(f"no engine serves: {self.failure}")

    async def wait_model(self) -> None:
        """See ``api.Fleet``."""
        with self.backlog.counted_wait():
            if self._is_asleep:
                self.demand(False)
            self._refusal = None
            await self._is_settled.wait()
            # Loads after the first one have no event.
            while self._is_asleep and self._refusal is None:
                self._check_open()
                self.demand(False)
                await asyncio.sleep(_POLL_SECONDS)
        if self._refusal is not None:
            raise self._refusal
        # Settled also means that the fleet drains, is unloaded or has failed.
        self._check_open()

    def status(self) -> Sequence[ReplicaStatus]:
        """See ``api.Fleet``."""
        return [
            replace(replica.status(), machine=self.inspection.machine(replica))
            for replica in self._replicas
        ]

    async def refresh_stats(self) -> None:
        """See ``api.Fleet``."""
        await self.inspection.refresh()

    @property
    def model(self) -> ModelInfo | None:
        """See ``api.Fleet``."""
        return next((r.model for r in self._replicas if r.model is not None), None)

    @property
    def room(self) -> QueueCapacity:
        """See ``api.Fleet``."""
        return self.backlog.room

    @property
    def load_seconds(self) -> float:
        """See ``api.Fleet``."""
        return self.backlog.load_seconds

    @property
    def is_ready(self) -> bool:
        """See ``api.Fleet``."""
        return self.condition in ("ready", "asleep")

    @property
    def condition(self) -> str:
        """See ``api.Fleet``."""
        if self._is_draining:
            return "not_ready"
        if not self._is_loaded.is_set():
            return "unloaded"
        if self._is_asleep:
            return "paused" if self.pause.is_on else "asleep"
        if not any(replica.is_responsive for replica in self._replicas):
            return "not_ready"
        return "paused" if self.pause.is_on else "ready"

    @property
    def is_draining(self) -> bool:
        """Whether further requests are refused because the daemon stops."""
        return self._is_draining

    def problems(self) -> list[str]:
        """Unresolved problems of replicas, a sentence each, for health monitoring."""
        return [found for replica in self._replicas if (found := problem_of(replica))]

    @property
    def num_pending(self) -> int:
        """See ``api.Fleet``."""
        return self._dispatch.num_pending

    @property
    def num_unfinished(self) -> int:
        """Sequences at engines, and pending ones."""
        return self._dispatch.num_unfinished

    @property
    def dropped_tokens(self) -> int:
        """Tokens received for sequences that have ended or are unknown."""
        return self._dispatch.dropped_tokens

    def on_ready(self, replica: Replica) -> None:
        """See ``ReplicaOwner``."""
        self._was_ready.set()
        self._is_settled.set()
        self._dispatch.dispatch_pending()

    def on_step(self, replica: Replica, step: StepOutput) -> None:
        """See ``ReplicaOwner``."""
        self._dispatch.deliver(replica, step)

    def on_swapped(self, replica: Replica, event: Swapped) -> None:
        """See ``ReplicaOwner``."""
        self.swaps.answered(event)

    def on_pinned(self, replica: Replica, event: Pinned) -> None:
        """See ``ReplicaOwner``."""
        self.pins.answered(event)

    def on_evicted(self, replica: Replica, event: Evicted) -> None:
        """See ``ReplicaOwner``."""
        self.operating.answered(event)

    def on_inspected(self, replica: Replica, event: Looked) -> None:
        """See ``ReplicaOwner``."""
        if isinstance(event, Inspected):
            self.inspection.answered(replica, event)
        else:
            self.inspection.browsed(event)

    def on_lost(self, replica: Replica, reason: str) -> None:
        """See ``ReplicaOwner``."""
        self.swaps.lost(replica)
        self.pins.lost(replica)
        self.inspection.lost(replica)
        self.operating.lost(replica)
        self._dispatch.on_lost(replica)
