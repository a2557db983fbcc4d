"""Wires the metrics of shared resources to their sources."""

from __future__ import annotations

from gatewayd.catalogue.target import ModelTarget
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
    durable, targets = services.durable, services.catalogue

    def models() -> list[ModelTarget]:
        return [one for one in targets.targets if isinstance(one, ModelTarget)]

    def queues() -> dict[str, QueueStats]:
        found = {
            "parsing": body_threads.threads.stats,
            "large_answers": large_answers.threads.stats,
        }
        for target in models():
            # The default's first: the others' queues carry the name of their model.
            suffix = "" if target is targets.default else f":{target.name}"
            own = dict(target.text.tokenizer.queues)
            if target.guides is not None:
                own["grammars"] = target.guides.queue.stats
            found.update({name + suffix: stats for name, stats in own.items()})
        if durable is not None:
            found.update(durable.queues)
        return found

    def refusals() -> dict[str, int]:
        found = {"bodies": bodies.num_refused, "requests": gate.num_refused}
        checks = [one.guides for one in models() if one.guides is not None]
        if checks:
            found["lost_checkers"] = sum([one.losses.num_refused for one in checks])
        if durable is not None:
            found.update(durable.refusals)
        return found

    return SharingCollector(queues, lambda: bodies.total, refusals)
