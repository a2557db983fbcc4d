"""Load generator: records what a server of known timing did."""

from __future__ import annotations

import asyncio
import itertools
import time
from typing import Any

import pytest

from gatewayd.cli.bench.load import LoadTarget, Stop, closed_loop, open_loop, send
from gatewayd.cli.bench.sweep import LoadLevel, SweepPlan, measure
from gatewayd.cli.bench.workload import Item, RequestShape, corpus_for, synthetic
from gatewayd.cli.client.api import ApiClient

ITEM = Item([1, 2, 3], 5)


async def test_a_request_is_timed_by_its_events(server: Any) -> None:
    server.first, server.gap = 0.1, 0.05
    async with ApiClient(server.url) as client:
        record = await send(LoadTarget(client, "fake"), ITEM)
    assert record.error is None
    assert len(record.arrivals) == 5
    assert 0.1 <= record.ttft < 0.2
    assert record.tpot is not None
    assert 0.05 <= record.tpot < 0.1
    assert 0.3 <= record.e2e < 0.5
    assert record.e2e == pytest.approx(record.ttft + sum(record.itl), abs=1e-9)
    assert (record.prompt_tokens, record.cached_tokens, record.output_tokens) == (7, 2, 5)


async def test_the_request_asks_for_what_the_target_says(server: Any) -> None:
    async with ApiClient(server.url) as client:
        await send(LoadTarget(client, "fake"), ITEM)
        await send(LoadTarget(client, "fake", ignore_eos=False, temperature=0.5), Item("hi", 1))
    assert server.bodies[0] == {
        "model": "fake",
        "prompt": [1, 2, 3],
        "max_tokens": 5,
        "temperature": 0.0,
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
    }
    assert server.bodies[1]["prompt"] == "hi"
    assert server.bodies[1]["temperature"] == 0.5
    assert "ignore_eos" not in server.bodies[1]


async def test_the_role_that_opens_a_chat_is_not_its_first_token(server: Any) -> None:
    server.first = 0.1
    async with ApiClient(server.url) as client:
        record = await send(LoadTarget(client, "fake", chat=True), Item("hi", 3))
    assert server.bodies[0]["messages"] == [{"role": "user", "content": "hi"}]
    assert record.ttft >= 0.1
    assert record.output_tokens == 3


async def test_usage_counts_tokens_and_events_where_it_is_missing(server: Any) -> None:
    server.tokens_per_event = 2
    async with ApiClient(server.url) as client:
        counted = await send(LoadTarget(client, "fake"), Item([1], 6))
        server.with_usage = False
        guessed = await send(LoadTarget(client, "fake"), Item([1], 6))
    assert counted.output_tokens == 6
    assert guessed.output_tokens == 3


async def test_refusals_and_broken_streams_are_errors_by_code(server: Any) -> None:
    server.fail_every = 2
    async with ApiClient(server.url) as client:
        target = LoadTarget(client, "fake")
        records = [await send(target, ITEM) for _ in range(2)]
        server.fail_every, server.break_after, server.gap = 0, 3, 0.02
        broken = await send(target, ITEM)
    assert [record.error for record in records] == [None, "overloaded"]
    assert broken.error == "engine_restarted"
    assert len(broken.arrivals) == 3


async def test_a_server_that_is_not_there_is_a_connection_error(unused_tcp_port: int) -> None:
    async with ApiClient(f"http://127.0.0.1:{unused_tcp_port}") as client:
        record = await send(LoadTarget(client, "fake"), ITEM)
    assert record.error == "connection"


async def test_a_closed_loop_keeps_exactly_its_concurrency_in_flight(server: Any) -> None:
    server.first = 0.02
    async with ApiClient(server.url) as client:
        records = await closed_loop(
            LoadTarget(client, "fake"), itertools.repeat(ITEM), 3, Stop(requests=10)
        )
    assert len(records) == len(server.bodies) == 10
    assert server.most_in_flight == 3


async def test_a_closed_loop_stops_sending_when_its_time_is_over(server: Any) -> None:
    server.first = 0.05
    async with ApiClient(server.url) as client:
        records = await closed_loop(
            LoadTarget(client, "fake"), itertools.repeat(ITEM), 2, Stop(seconds=0.4)
        )
    assert 2 <= len(records) <= 18  # 16 on an idle machine
    # What would be sent later would be sent for ever.
    assert max(record.sent for record in records) - records[0].sent < 0.4 + 5


async def test_an_open_loop_does_not_wait_for_answers(server: Any) -> None:
    server.gate = asyncio.Semaphore(0)
    async with ApiClient(server.url) as client, asyncio.TaskGroup() as group:
        loop = open_loop(
            LoadTarget(client, "fake"), itertools.repeat(ITEM), 200.0, Stop(requests=40), seed=1
        )
        task = group.create_task(loop)
        while server.in_flight < 40 and not task.done():
            await asyncio.sleep(0.005)
        for _ in range(40):
            server.gate.release()
        records = await task
    assert len(records) == 40
    assert server.most_in_flight == 40


async def test_an_open_loop_keeps_its_rate_and_repeats_its_moments(server: Any) -> None:
    async def moments() -> list[float]:
        records = await open_loop(
            LoadTarget(client, "fake"), itertools.repeat(ITEM), 200.0, Stop(requests=100), seed=1
        )
        assert all(record.sent >= record.intended for record in records)
        intended = sorted(record.intended for record in records)
        return [moment - intended[0] for moment in intended]

    async with ApiClient(server.url) as client:
        first, again = await moments(), await moments()
    assert first == pytest.approx(again, abs=1e-6)
    assert 0.35 < first[-1] < 0.7  # 99 gaps of 5 ms in the mean


async def test_latency_in_an_open_loop_counts_from_the_intended_moment(server: Any) -> None:
    """A server that serves one request at a time cannot hide the queue it causes."""
    server.first, server.gate = 0.05, asyncio.Semaphore(1)
    async with ApiClient(server.url) as client:
        original = client.stream

        def late(path: str, body: dict[str, Any]) -> Any:
            time.sleep(0.02)  # the client itself falls behind its plan
            return original(path, body)

        client.stream = late  # type: ignore[method-assign]
        records = await open_loop(
            LoadTarget(client, "fake"),
            itertools.repeat(Item([1], 1)),
            1000.0,
            Stop(requests=10),
            seed=1,
        )
    records.sort(key=lambda record: record.intended)
    for place, record in enumerate(records):
        assert record.intended - records[0].intended < 0.1
        assert record.ttft > 0.05 * (place + 1) - 0.03
    assert records[-1].sent - records[-1].intended > 0.05


async def test_a_sweep_warms_up_apart_and_repeats_no_prompt(server: Any) -> None:
    async with ApiClient(server.url) as client:
        corpus = await corpus_for(client, "fake", as_text=False)
        assert not isinstance(corpus, str)
        levels = await measure(
            LoadTarget(client, "fake"),
            synthetic(corpus, RequestShape(prompt_tokens=12, output_tokens=2), seed=0),
            SweepPlan(
                [LoadLevel("concurrency", 1), LoadLevel("rate", 500.0)], Stop(requests=6), warmup=3
            ),
        )
    assert [(level.load, level.value, level.succeeded) for level in levels] == [
        ("concurrency", 1, 6),
        ("rate", 500.0, 6),
    ]
    assert levels[0].cold_ttft is not None
    assert levels[1].cold_ttft is None
    prompts = [tuple(body["prompt"]) for body in server.bodies]
    assert len(prompts) == 1 + 3 + 6 + 3 + 6
    assert len(set(prompts)) == len(prompts)
    assert {len(prompt) for prompt in prompts} == {12}
