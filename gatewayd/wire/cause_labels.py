"""Display names of latency causes; the API and metrics use the keys."""

from __future__ import annotations

from collections.abc import Mapping

LABELS: Mapping[str, str] = {
    "receive": "request body",
    "gateway": "gateway",
    "grammar": "grammar compile",
    "admission": "admission",
    "no_engine": "no engine",
    "engine": "engine pickup",
    "turn": "queue",
    "rows": "running batch full",
    "pages": "KV cache full",
    "kv_quota": "KV quota",
    "leader": "shared prefix",
    "tier": "KV tier",
    "preempted": "preempted",
    "held": "held by operator",
    "prefill": "prefill",
    "recompute": "recompute",
    "decode": "decode",
    "upstream_slot": "upstream limit",
    "upstream": "upstream",
    "relaying": "upstream answer",
    "crowd": "shared step",
    "plugin": "plugin",
    "answer": "response",
}
"""By the key of ``gatewayd.tracing.causes.CAUSES``."""


def label(cause: str, strategy: str = "") -> str:
    """The display name of a cause with its strategy; unknown, newer causes keep their key."""
    name = LABELS.get(cause, cause)
    return f"{name}: {strategy}" if strategy else name
