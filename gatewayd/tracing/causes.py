"""Latency causes of requests, with their descriptions."""

from __future__ import annotations

from collections.abc import Mapping

from gatewayd.tracing.timeline import NO_ENGINE, RELAYING, SENT, UPSTREAM, UPSTREAM_SLOT
from gatewayd_engine.process.time_causes import Cause

RECEIVE = "receive"
GATEWAY = "gateway"
ADMISSION = "admission"
GRAMMAR = "grammar"
WAITED_ENGINE = "no_engine"
PLUGIN = "plugin"
CROWD = "crowd"
ANSWER = "answer"

CAUSES: Mapping[str, str] = {
    RECEIVE: "receiving the request body",
    GATEWAY: "validation, chat template, tokenization and routing",
    GRAMMAR: "compiling its grammar",
    ADMISSION: "rate limits, budgets and admission",
    WAITED_ENGINE: "no engine was ready, or its engine was lost",
    "engine": "waiting for the engine to pick it up",
    "turn": "queued: other requests filled the steps",
    "rows": "queued: the running batch was full",
    "pages": "queued: no free KV-cache pages",
    "kv_quota": (
        "queued: its tenant's KV quota was used up, or free pages were reserved for other tenants"
    ),
    "leader": "deferred: another request computed the prefix they share",
    "tier": "deferred: loading pages from a KV tier",
    "preempted": "preempted and queued again",
    "held": "held by an operator",
    "prefill": "prefill of its prompt",
    "recompute": "recomputing what preemption had dropped",
    "decode": "decoding its tokens",
    "upstream_slot": "waiting for the upstream's other requests: its concurrency is limited",
    "upstream": "waiting for the upstream's first token",
    "relaying": "receiving the upstream's answer",
    CROWD: "prefill of other requests in shared steps",
    PLUGIN: "running strategies and plugins",
    ANSWER: "sending the response, as fast as its client reads",
}
"""Description of every cause, in the order of a request's lifecycle."""

AT_ENGINE: Mapping[int, str] = {
    NO_ENGINE: WAITED_ENGINE,
    SENT: "engine",
    UPSTREAM_SLOT: "upstream_slot",
    UPSTREAM: "upstream",
    RELAYING: "relaying",
    **{cause: cause.name.lower() for cause in Cause},
}
"""Names of the causes that engines report."""
