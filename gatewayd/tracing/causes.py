"""What a request's time can be spent on, in words."""

from __future__ import annotations

from collections.abc import Mapping

from gatewayd.tracing.timeline import NO_ENGINE, SENT
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
    RECEIVE: "its body came in",
    GATEWAY: "it was checked, rendered, encoded and placed",
    GRAMMAR: "what it must follow was compiled",
    ADMISSION: "limits, budgets and the admission decided about it",
    WAITED_ENGINE: "no engine was ready, or its engine was lost",
    "engine": "its engine said nothing of it",
    "turn": "it waited while others' tokens filled the steps",
    "rows": "it waited for a free row of the batch",
    "pages": "it waited for free pages of the KV cache",
    "kv_quota": "its tenant held all pages that it may, or others' were kept for them",
    "leader": "it waited for another that computed the beginning they share",
    "tier": "it waited for pages from a KV tier",
    "preempted": "it had given way to others, and waited again",
    "held": "an operator held it",
    "prefill": "its prompt was computed",
    "recompute": "what it had lost by giving way was computed again",
    "decode": "its tokens were generated",
    CROWD: "others' prompts were computed in its steps",
    PLUGIN: "strategies and plugins ran",
    ANSWER: "its answer was written, as fast as its client reads",
}
"""Every cause, in the order of a request's life, and what is said of a request."""

AT_ENGINE: Mapping[int, str] = {
    NO_ENGINE: WAITED_ENGINE,
    SENT: "engine",
    **{cause: cause.name.lower() for cause in Cause},
}
"""The names of what engines tell."""
