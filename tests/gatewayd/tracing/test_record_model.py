"""Model of a latency record: that which answered, or at which the request was refused."""

from __future__ import annotations

from gatewayd.errors import EngineLost, QueueFull
from gatewayd.http.services import RequestLimits
from gatewayd.text.text_model import TextModel
from gatewayd.tracing.recent import RecentLatencyRecords
from tests.gatewayd.fake_fleet import FakeFleet, fails, says
from tests.gatewayd.gateway import CHAT, COMPLETION, running, until
from tests.gatewayd.http.routes.routed import fallback

ANSWER = says([300, 301])


async def test_it_is_the_name_of_operators_whatever_name_the_client_uses(text: TextModel) -> None:
    recent = RecentLatencyRecords()
    fleets = FakeFleet(ANSWER), FakeFleet(ANSWER)
    async with running(text, fleets[0], others={"large": fleets[1]}, recent=recent) as gateway:
        for name in ("nano", "gpt-test", "large"):
            answer = await gateway.http.post("/v1/chat/completions", json={**CHAT, "model": name})
            assert answer.json()["model"] == name
        await until(lambda: len(recent) == 3)
    assert [record.model for record in recent.newest(9)] == ["large", "nano", "nano"]
    assert [record.model for record in recent.newest(1, "nano")] == ["nano"]


async def test_of_a_route_it_is_the_target_that_answered(text: TextModel) -> None:
    recent = RecentLatencyRecords()
    first, second = FakeFleet(fails(EngineLost("the engine was lost"), [])), FakeFleet(ANSWER)
    async with running(
        text, first, others={"large": second}, routes=[fallback()], recent=recent
    ) as gateway:
        answer = await gateway.http.post("/v1/chat/completions", json={**CHAT, "model": "smart"})
        assert answer.status_code == 200
        await until(lambda: len(recent))
    assert [record.model for record in recent.newest(9)] == ["large"]


async def test_a_refused_request_has_the_model_that_refused_it(text: TextModel) -> None:
    recent = RecentLatencyRecords()
    first, full = FakeFleet(ANSWER), FakeFleet(ANSWER)
    full.refusal = QueueFull("no room", retry_after=7)
    loads = FakeFleet(ANSWER)
    loads.model = None
    async with running(
        text,
        first,
        others={"full": full, "loads": loads},
        limits=RequestLimits(load_seconds=0.01, wake_seconds=0.01),
        recent=recent,
    ) as gateway:
        for name in ("full", "loads"):
            answer = await gateway.http.post("/v1/completions", json={**COMPLETION, "model": name})
            assert answer.status_code == 503
    refused = recent.newest(9)
    assert [(one.outcome, one.model) for one in refused] == [
        ("refused", "loads"),
        ("refused", "full"),
    ]
