"""Fleet with healthy engines: tokens, choices, caps, cancellation, routing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import numpy as np
import pytest

from gatewayd.engines.backlog import QueueLimits
from gatewayd.errors import EngineUnavailable, NumericalError, QueueFull, ServerStopping
from gatewayd.fairness.queue_capacity import QueueCapacity
from gatewayd.plugins.router import FAULT_LIMIT
from gatewayd_hooks.routing import ReplicaView, RouteRequest

Make = Callable[..., Awaitable[Any]]
Expected = Callable[[Sequence[int], int], list[int]]


async def test_every_request_gets_its_own_tokens(
    make_fleet: Make, expected_tokens: Expected
) -> None:
    setup = await make_fleet()
    prompts = [[k, k + 1, k * 7] for k in range(1, 60)]
    sinks = [setup.generate(p, 1 + k % 9) for k, p in enumerate(prompts)]
    for k, (prompt, sink) in enumerate(zip(prompts, sinks, strict=True)):
        await sink.end()
        count = 1 + k % 9
        assert sink.ids == expected_tokens(prompt, count)
        assert sink.calls == ["admitted"] + ["tokens"] * count + ["finished"]
        assert sink.reason == "length"
    assert setup.fleet.num_unfinished == 0
    assert (setup.fleet.backlog.num_requests, setup.fleet.backlog.num_tokens) == (0, 0)
    assert setup.fleet.dropped_tokens == 0


async def test_choices_share_a_request_and_end_apart(
    make_fleet: Make, make_sink: type, make_request: Any, expected_tokens: Expected
) -> None:
    setup = await make_fleet()
    sinks = [make_sink() for _ in range(3)]
    setup.fleet.submit(make_request([5, 6], 4), sinks)
    for sink in sinks:
        assert (await sink.end()).ids == expected_tokens([5, 6], 4)


async def test_logprobs_come_with_their_tokens(
    make_fleet: Make, make_sink: type, make_request: Any
) -> None:
    setup = await make_fleet()
    with_logprobs, without = make_sink(), make_sink()
    setup.fleet.submit(make_request([5], 4, logprobs=0), [with_logprobs])
    setup.fleet.submit(make_request([6], 4), [without])
    await with_logprobs.end()
    await without.end()
    assert [entry.token for entry in with_logprobs.logprobs] == with_logprobs.ids
    assert without.logprobs == []


async def test_a_cancelled_choice_is_told_nothing_more(
    make_fleet: Make, make_sink: type, make_request: Any
) -> None:
    setup = await make_fleet(FAKE_STEP_MS=5)
    handle: Any = None

    def stop_at_three(sink: Any) -> None:
        if len(sink.ids) == 3:
            handle.cancel(0)

    cancelled, kept = make_sink("a", stop_at_three), make_sink("b")
    handle = setup.fleet.submit(make_request([5], 40), [cancelled, kept])
    await kept.end()
    assert len(cancelled.ids) == 3
    assert cancelled.calls[-1] == "tokens"
    assert len(kept.ids) == 40
    handle.cancel()
    handle.cancel()
    assert kept.calls.count("finished") == 1
    assert setup.fleet.num_unfinished == 0


async def test_cancelling_reaches_the_engine(
    make_fleet: Make, make_sink: type, make_request: Any
) -> None:
    setup = await make_fleet(FAKE_STEP_MS=5)
    sink = make_sink()
    handle = setup.fleet.submit(make_request([1], 10_000), [sink])
    await setup.until(lambda: setup.fleet.status()[0].stats.num_running == 1)
    handle.cancel()
    await setup.until(lambda: setup.fleet.status()[0].stats.num_running == 0)
    assert not sink.over.is_set()


async def test_a_request_cancelled_while_pending_is_never_sent(
    make_fleet: Make, make_sink: type, make_request: Any
) -> None:
    setup = await make_fleet(FAKE_LOAD_MS=200)
    sink = make_sink()
    handle = setup.fleet.submit(make_request([1], 3), [sink, make_sink()])
    assert setup.fleet.num_pending == 2
    handle.cancel()
    assert setup.fleet.num_pending == 0
    assert handle.replica is None
    assert setup.fleet.backlog.num_requests == 0
    await setup.generate([2], 3).end()
    assert sink.calls == []


async def test_the_cap_on_requests_refuses_with_a_hint(make_fleet: Make) -> None:
    setup = await make_fleet(FAKE_FAULTS="hold", limits=QueueLimits(3, 1000))
    for _ in range(3):
        setup.generate([1, 2], 1)
    with pytest.raises(QueueFull, match="3 requests are waiting; the limit is 3") as caught:
        setup.generate([1, 2], 1)
    assert (caught.value.retry_after, caught.value.by_tokens) == (1.0, False)


async def test_the_room_left_is_what_the_caps_leave(make_fleet: Make) -> None:
    setup = await make_fleet(FAKE_FAULTS="hold", limits=QueueLimits(3, 1000))
    assert setup.fleet.room == QueueCapacity(3, 3, 1000, 1000, 0.0)
    setup.generate([1, 2], 1)
    assert setup.fleet.room[:4] == (3, 2, 1000, 998)


async def test_the_cap_on_tokens_takes_one_large_prompt_alone(make_fleet: Make) -> None:
    setup = await make_fleet(FAKE_FAULTS="hold", limits=QueueLimits(30, 100))
    setup.generate([1] * 200, 1)
    with pytest.raises(
        QueueFull, match="200 prompt tokens are waiting and this request has 5"
    ) as caught:
        setup.generate([1] * 5, 1)
    assert caught.value.by_tokens


async def test_running_requests_do_not_count_as_waiting(make_fleet: Make) -> None:
    setup = await make_fleet(FAKE_STEP_MS=5, limits=QueueLimits(2, 1000))
    await setup.ready()
    for _ in range(6):
        sink = setup.generate([1, 2], 1000)
        await setup.until(lambda s=sink: bool(s.ids))
    assert setup.fleet.backlog.num_requests == 0


async def test_logits_that_are_no_numbers_fail_their_request_alone(make_fleet: Make) -> None:
    setup = await make_fleet(FAKE_FAULTS="nan@4", FAKE_STEP_MS=5)
    await setup.ready()
    sinks = [setup.generate([k], 20) for k in range(1, 5)]
    for sink in sinks:
        await sink.end()
    assert isinstance(sinks[0].error, NumericalError)
    assert [len(sink.ids) for sink in sinks[1:]] == [20, 20, 20]
    assert setup.fleet.status()[0].restarts == 0


async def test_a_sink_that_raises_harms_no_other(
    make_fleet: Make, make_sink: type, make_request: Any
) -> None:
    setup = await make_fleet(FAKE_STEP_MS=2)

    def explode(sink: Any) -> None:
        raise RuntimeError("boom")

    broken, healthy = make_sink("broken", explode), make_sink("healthy")
    setup.fleet.submit(make_request([1], 30), [broken])
    setup.fleet.submit(make_request([2], 30), [healthy])
    await healthy.end()
    assert len(healthy.ids) == 30
    assert broken.calls == ["admitted", "tokens", "failed"]


async def test_tokens_for_strangers_are_dropped_and_counted(make_fleet: Make) -> None:
    setup = await make_fleet(FAKE_FAULTS="stranger@2")
    sink = setup.generate([1], 5)
    await sink.end()
    assert len(sink.ids) == 5
    assert setup.fleet.dropped_tokens == 1


async def test_requests_spread_over_replicas(make_fleet: Make) -> None:
    setup = await make_fleet(num_replicas=2, FAKE_STEP_MS=5)
    await setup.until(lambda: all(s.model for s in setup.fleet.status()))
    sinks = [setup.generate([k], 20) for k in range(1, 9)]
    assert [len(flight) for flight in setup.fleet._dispatch.sent] == [4, 4]
    for sink in sinks:
        await sink.end()
    assert all(status.stats.step > 0 for status in setup.fleet.status())


class _BadRouter:
    """Raises, does not come back, then talks nonsense; counts how often it is asked."""

    def __init__(self) -> None:
        self.asked = 0

    def open(self, resources: object) -> None:
        pass

    def close(self) -> None:
        pass

    def route(self, request: RouteRequest, replicas: Sequence[ReplicaView]) -> int:
        self.asked += 1
        if self.asked == 1:
            raise RuntimeError("no idea")
        if self.asked == 2:
            time.sleep(60)
        return np.array([0, 1])  # type: ignore[return-value]


async def test_a_broken_router_loses_no_request_and_is_asked_no_more(
    make_fleet: Make, caplog: pytest.LogCaptureFixture
) -> None:
    router = _BadRouter()
    setup = await make_fleet(router=router)
    await setup.ready()
    began = time.monotonic()
    sinks = [setup.generate([k], 2) for k in range(1, 11)]
    await asyncio.gather(*(sink.end() for sink in sinks))
    assert time.monotonic() - began < 30
    assert router.asked == FAULT_LIMIT
    assert "hung: router: test.route hung at" in caplog.text
    assert "router strategy test quarantined" in caplog.text


async def test_who_waits_for_the_model_is_counted_as_one_that_waits(make_fleet: Make) -> None:
    setup = await make_fleet(limits=QueueLimits(2, 1000))
    waiting = [asyncio.create_task(setup.fleet.wait_model()) for _ in range(2)]
    await asyncio.sleep(0)
    assert setup.fleet.backlog.num_requests == 2
    with pytest.raises(QueueFull, match="2 requests are waiting"):
        await setup.fleet.wait_model()
    await asyncio.wait_for(asyncio.gather(*waiting), 30)
    assert setup.fleet.model is not None
    assert setup.fleet.backlog.num_requests == 0


async def test_who_waits_for_the_model_is_told_that_it_will_not_come(make_fleet: Make) -> None:
    failing, stopping = await make_fleet(FAKE_FAULTS="load_fatal"), await make_fleet()
    waiting = [asyncio.create_task(setup.fleet.wait_model()) for setup in (failing, stopping)]
    await asyncio.sleep(0)
    stopping.fleet.drain()
    await asyncio.wait_for(failing.fleet.wait_failed(), 30)
    with pytest.raises(EngineUnavailable, match="no engine serves"):
        await waiting[0]
    with pytest.raises(ServerStopping):
        await waiting[1]
    assert failing.fleet.backlog.num_requests == 0
