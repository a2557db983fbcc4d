"""Backlog: waiting requests, here or in an engine's queue, and their limits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from gatewayd.engines.job import EngineJob
from gatewayd.errors import QueueFull
from gatewayd.fairness.queue_capacity import QueueCapacity
from gatewayd_hooks.admission import Load
from gatewayd_hooks.scheduling import Priority

# Bounds of `retry_after`: the last wait is 0 at the start, and may have been very long.
_RETRY_SECONDS = (1.0, 60.0)


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """Limits on waiting work.

    Attributes:
        max_waiting_requests: requests without any computed token.
        max_waiting_tokens: prompt tokens of those.
    """

    max_waiting_requests: int
    max_waiting_tokens: int


class Backlog:
    """Counts waiting jobs; a job enters and leaves again whenever its engine is lost.

    Attributes:
        limits: on waiting work.
        num_requests: waiting requests.
        num_tokens: prompt tokens of those.
        load_seconds: forecast of the time until the model is loaded; 0 once it is.
    """

    def __init__(self, limits: QueueLimits) -> None:
        self.limits = limits
        self.load_seconds = 0.0
        self.num_requests = 0
        self.num_tokens = 0
        self._last_wait_seconds = 0.0
        self._class_tokens = [0 for _ in Priority]
        self._tenants: dict[str, tuple[int, int]] = {}  # requests and tokens, of tenants with any

    def check(self, prompt_len: int) -> None:
        """Refuse a new request if the limits are reached.

        A prompt larger than the limit on tokens is accepted if nothing else waits.

        Raises:
            QueueFull: a limit is reached; ``retry_after`` is the time that the last admitted
                request has waited.
        """
        limits = self.limits
        by_tokens = self.num_requests < limits.max_waiting_requests
        if not by_tokens:
            reason = (
                f"{self.num_requests} requests are waiting; the limit is "
                f"{limits.max_waiting_requests}"
            )
        elif self.num_requests and self.num_tokens + prompt_len > limits.max_waiting_tokens:
            reason = (
                f"{self.num_tokens} prompt tokens are waiting and this request has "
                f"{prompt_len}; the limit is {limits.max_waiting_tokens}"
            )
        else:
            return
        low, high = _RETRY_SECONDS
        wait = max(self.load_seconds, min(high, max(low, self._last_wait_seconds)))
        raise QueueFull(f"{reason}; try again later", retry_after=wait, by_tokens=by_tokens)

    @property
    def room(self) -> QueueCapacity:
        """See ``api.Fleet``."""
        limits = self.limits
        return QueueCapacity(
            limits.max_waiting_requests,
            max(0, limits.max_waiting_requests - self.num_requests),
            limits.max_waiting_tokens,
            max(0, limits.max_waiting_tokens - self.num_tokens),
            self._last_wait_seconds if self.num_requests else 0.0,
        )

    @contextmanager
    def counted_wait(self) -> Iterator[None]:
        """Count a request that waits for the model before its prompt can be encoded.

        Raises:
            QueueFull: as ``check`` does.
        """
        # Its prompt counts no tokens: it is not encoded yet.
        self.check(0)
        self.num_requests += 1
        try:
            yield
        finally:
            self.num_requests -= 1

    def add(self, job: EngineJob) -> None:
        """Count a job as waiting; idempotent."""
        if not job.is_waiting:
            job.is_waiting = True
            self._count(job, 1)

    def remove(self, job: EngineJob) -> None:
        """Count a job as no longer waiting; idempotent."""
        if job.is_waiting:
            job.is_waiting = False
            self._count(job, -1)

    def _count(self, job: EngineJob, sign: int) -> None:
        # A job is removed with the class that it was added with; see `EngineOperating.bump`.
        tokens, tenant = sign * job.prompt_len, job.request.tenant
        self.num_requests += sign
        self.num_tokens += tokens
        self._class_tokens[job.request.priority] += tokens
        requests, of_tenant = self._tenants.get(tenant, (0, 0))
        # Removed at zero, so that `num_tenants` counts those that wait, and the dict stays small.
        if requests + sign:
            self._tenants[tenant] = requests + sign, of_tenant + tokens
        else:
            del self._tenants[tenant]

    def load(self, tenant: str, priority: int, num_replicas: int) -> Load:
        """The load that an admission strategy sees for a request of a tenant and class."""
        requests, tokens = self._tenants.get(tenant, (0, 0))
        return Load(
            requests=self.num_requests,
            tokens=self.num_tokens,
            limit_requests=self.limits.max_waiting_requests,
            limit_tokens=self.limits.max_waiting_tokens,
            # Class 0 is the most urgent.
            urgent_tokens=sum(self._class_tokens[: priority + 1]),
            tenant_requests=requests,
            tenant_tokens=tokens,
            num_tenants=len(self._tenants) + (tenant not in self._tenants),
            num_replicas=num_replicas,
        )

    def record_admission(self, job: EngineJob, queue_seconds: float) -> None:
        """Record that an engine has admitted the job after this time in its queue."""
        self._last_wait_seconds = queue_seconds
        self.remove(job)
