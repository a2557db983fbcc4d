"""Conversions: a replica as routers see it, and a job as engines receive it."""

from __future__ import annotations

import time

from gatewayd.engines.job import EngineJob
from gatewayd.engines.replicas.engine_requests import SentRequests
from gatewayd.engines.replicas.replica import Replica
from gatewayd_engine.process.messages import Submit
from gatewayd_hooks.routing import ReplicaView


def view_of(replica: Replica, flight: SentRequests) -> ReplicaView:
    """Build the router's view of a replica and its requests."""
    stats = replica.stats
    # Zero until the engine has made its first step.
    pages = stats.free_pages + stats.cached_pages + stats.held_pages
    return ReplicaView(
        index=replica.index,
        num_running=len(flight) - flight.num_waiting,
        num_waiting=flight.num_waiting,
        queued_tokens=flight.queued_tokens,
        kv_usage=stats.held_pages / pages if pages else 0.0,
    )


def submit_of(job: EngineJob) -> Submit:
    """Build the engine command for a job whose choices have sequence ids."""
    request, trail = job.request, job.trail
    return Submit(
        sequences=[choice.sequence for choice in job.choices],
        prompt=job.prompt,
        params=request.params,
        salt=request.salt,
        priority=request.priority,
        tenant=request.tenant,
        queued_seconds=time.monotonic() - job.arrived,
        has_returned=job.last_replica is not None,
        retention=request.retention,
        weight=request.weight,
        deadline=request.deadline,
        is_held=job.is_held,
        request_id=request.request_id,
        x_request_id="" if trail is None else trail.answered_id,
    )
