"""Wires the metrics of shared resources to their sources."""

from __future__ import annotations

from gatewayd.fairness.fair_queue import QueueStats
from gatewayd.http import body_threads
from gatewayd.http.bodies import BodyBudget
from gatewayd.http.openai import large_answers
from gatewayd.http.server.request_gate import RequestGate
from gatewayd.http.services import Services
from gatewayd.metrics.sharing import SharingCollector


def sharing_collector(
    services: Services, bodies: BodyBudget, gate: RequestGate
) -> SharingCollector:
    """Create the collector of the gateway's queues, bodies and refusals."""
    durable, guides = services.durable, services.guides

    def queues() -> dict[str, QueueStats]:
        found = {
            **services.text.tokenizer.queues,
            "parsing": body_threads.threads.stats,
            "large_answers": large_answers.threads.stats,
        }
        if guides is not None:
            found["grammars"] = guides.queue.stats
        if durable is not None:
            found.update(durable.queues)
        return found

    def refusals() -> dict[str, int]:
        found = {"bodies": bodies.num_refused, "requests": gate.num_refused}
        if guides is not None:
            found["lost_checkers"] = guides.losses.num_refused
        if durable is not None:
            found.update(durable.refusals)
        return found

    return SharingCollector(queues, lambda: bodies.total, refusals)
