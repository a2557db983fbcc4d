"""Sharing counters: waiting, held and refused work of shared resources on ``/metrics``."""

from __future__ import annotations

import asyncio
import threading

from prometheus_client.parser import text_string_to_metric_families

from gatewayd.http import body_threads
from gatewayd.http.services import RequestLimits
from gatewayd.text.text_model import TextModel
from tests.gatewayd.fake_fleet import FakeFleet, says
from tests.gatewayd.gateway import CHAT, Gateway, running


async def shown(gateway: Gateway) -> dict[tuple[str, str], float]:
    page = (await gateway.http.get("/metrics")).text
    return {
        (sample.name, next(iter(sample.labels.values()), "")): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


async def test_queues_and_refusals_are_counted(text: TextModel) -> None:
    end = threading.Event()
    limits = RequestLimits(bodies_bytes=100_000)
    async with running(text, FakeFleet(says([100])), limits=limits) as gateway:
        jobs = [asyncio.create_task(body_threads.run_in_thread(end.wait)) for _ in range(3)]
        await asyncio.sleep(0.05)
        held = await shown(gateway)
        end.set()
        await asyncio.gather(*jobs)
        long = {**CHAT, "user": "x" * 200_000}
        assert (await gateway.http.post("/v1/chat/completions", json=long)).status_code == 503
        after = await shown(gateway)
    assert held["gatewayd_queue_running", "parsing"] == 1
    assert held["gatewayd_queue_waiting", "parsing"] == 2
    assert held["gatewayd_sharing_refusals_total", "bodies"] == 0
    assert after["gatewayd_queue_waiting", "parsing"] == 0
    assert after["gatewayd_sharing_refusals_total", "bodies"] == 1
    assert after["gatewayd_body_bytes", ""] == 0
