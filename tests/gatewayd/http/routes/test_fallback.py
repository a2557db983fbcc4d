"""Fallback between the targets of a route: who answers, who is charged, what is recorded."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from gatewayd.errors import (
    ContextLengthExceeded,
    EngineLost,
    EngineUnavailable,
    GatewayError,
    NumericalError,
    QueueFull,
    RequestCancelled,
    TenantNotAdmitted,
)
from gatewayd.store.tables import usage
from gatewayd.text.text_model import TextModel
from gatewayd.tracing.explanation import explanation
from gatewayd.tracing.recent import RecentLatencyRecords
from gatewayd_hooks.targets.model_routing import FAILURES, Decision
from tests.gatewayd.fake_fleet import FakeFleet, Job, fails, hangs, says
from tests.gatewayd.gateway import CHAT, running, until
from tests.gatewayd.http.routes.routed import fallback, route_over
from tests.gatewayd.tenants.tenant_gateway import Town, bearer, town

ASKED = {**CHAT, "model": "smart", "max_tokens": 8}
ANSWER = says([300, 301, 302])
LOST = EngineLost("the engine was lost")


async def told(gateway: Any, body: dict[str, Any]) -> tuple[int, str, Any]:
    """Status, the target that answered, and the body or the events."""
    answer = await gateway.http.post("/v1/chat/completions", json=body)
    target = answer.headers.get("x-gatewayd-target", "")
    return answer.status_code, target, answer.text if body.get("stream") else answer.json()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("after", [[], [300]])
async def test_the_next_target_answers_what_one_fails_before_its_first_output(
    text: TextModel, stream: bool, after: list[int]
) -> None:
    if stream and after:
        pytest.skip("after the first output of a stream nothing can be taken back")
    recent = RecentLatencyRecords()
    first, second = FakeFleet(fails(LOST, after)), FakeFleet(ANSWER)
    async with running(
        text, first, others={"large": second}, routes=[fallback()], recent=recent
    ) as gateway:
        status, target, answer = await told(gateway, {**ASKED, "stream": stream})
        assert (status, target) == (200, "large")
        if stream:
            assert answer.count('"finish_reason":"stop"') == 1
            assert '"model":"smart"' in answer
        else:
            assert answer["model"] == "smart"
            assert answer["usage"]["completion_tokens"] == 3
        await until(lambda: len(recent))
        (record,) = recent.newest(9)
        assert record.outcome == "stop"
        assert record.route is not None
        assert [(a.target, a.outcome) for a in record.route.attempts] == [
            ("nano", "lost"),
            ("large", "answered"),
        ]
        shown = explanation(record).route
        assert shown is not None
        assert shown.order == ["nano", "large"]
        assert shown.scores == {"nano": 1.0, "large": 1.0}
        page = (await gateway.http.get("/metrics")).text
        for who, outcome in (("nano", "lost"), ("large", "answered")):
            labels = f'outcome="{outcome}",route="smart",target="{who}"'
            assert f"gatewayd_route_attempts_total{{{labels}}} 1.0" in page


async def test_a_stream_that_has_begun_ends_with_its_error(text: TextModel) -> None:
    first, second = FakeFleet(fails(LOST, [300])), FakeFleet(ANSWER)
    async with running(text, first, others={"large": second}, routes=[fallback()]) as gateway:
        status, target, events = await told(gateway, {**ASKED, "stream": True})
        assert (status, target) == (200, "nano")
        assert "engine_restarted" in events
        assert not second.jobs


@pytest.mark.parametrize(
    ("error", "goes_on"),
    [
        (QueueFull("full"), True),
        (EngineUnavailable("none"), True),
        (NumericalError("NaN"), True),
        (LOST, True),
        (TenantNotAdmitted("much", reason="load", retry_after=1.0), False),
        (RequestCancelled("by an operator"), False),
    ],
)
@pytest.mark.parametrize("is_refused", [False, True])
async def test_which_errors_another_target_answers(
    text: TextModel, error: GatewayError, goes_on: bool, is_refused: bool
) -> None:
    first, second = FakeFleet(fails(error)), FakeFleet(ANSWER)
    if is_refused:
        first.refusal = error
    async with running(text, first, others={"large": second}, routes=[fallback()]) as gateway:
        status, target, _ = await told(gateway, ASKED)
        assert (status, target) == ((200, "large") if goes_on else (error.status, ""))
        assert len(second.jobs) == goes_on


async def test_a_request_of_the_clients_own_fault_reaches_no_other(text: TextModel) -> None:
    first, second = FakeFleet(ANSWER), FakeFleet(ANSWER)
    async with running(text, first, others={"large": second}, routes=[fallback()]) as gateway:
        status, _, answer = await told(gateway, {**ASKED, "top_logprobs": 3})
        assert (status, answer["error"]["param"]) == (400, "top_logprobs")
        assert not first.jobs
        assert not second.jobs


async def test_only_configured_failures_lead_to_the_next(text: TextModel) -> None:
    first, second = FakeFleet(fails(LOST)), FakeFleet(ANSWER)
    routes = [fallback(on=["overloaded"])]
    async with running(text, first, others={"large": second}, routes=routes) as gateway:
        assert (await told(gateway, ASKED))[0] == 500
        first.refusal = QueueFull("full")
        assert (await told(gateway, ASKED))[:2] == (200, "large")


async def test_targets_that_are_not_ready_come_last(text: TextModel) -> None:
    first, second = FakeFleet(ANSWER), FakeFleet(ANSWER)
    async with running(text, first, others={"large": second}, routes=[fallback()]) as gateway:
        assert (await told(gateway, ASKED))[1] == "nano"
        first.is_ready = False
        assert (await told(gateway, ASKED))[1] == "large"
        second.is_ready = False
        assert (await told(gateway, ASKED))[1] == "nano"


async def test_the_last_error_is_the_answer_and_is_recorded_once(text: TextModel) -> None:
    recent = RecentLatencyRecords()
    first, second = FakeFleet(fails(LOST)), FakeFleet()
    second.refusal = QueueFull("full")
    async with running(
        text, first, others={"large": second}, routes=[fallback()], recent=recent
    ) as gateway:
        status, _, answer = await told(gateway, ASKED)
        assert (status, answer["error"]["code"]) == (503, "overloaded")
        (record,) = recent.newest(9)
        assert record.outcome == "refused"
        assert record.route is not None
        assert [one.outcome for one in record.route.attempts] == ["lost", "overloaded"]


async def test_who_leaves_during_an_attempt_is_noticed(text: TextModel) -> None:
    first, second = FakeFleet(hangs), FakeFleet(ANSWER)
    async with running(text, first, others={"large": second}, routes=[fallback()]) as gateway:
        task = asyncio.create_task(gateway.http.post("/v1/chat/completions", json=ASKED))
        await until(lambda: first.jobs)
        task.cancel()
        await asyncio.wait([task])
        await asyncio.wait_for(first.jobs[0].gone.wait(), 10)
        await gateway.until_finished()
        assert gateway.finished[0].outcome == "abort"
        assert not second.jobs


class Broken:
    """Routes by raising, hanging or answering nonsense."""

    def __init__(self, answer: object) -> None:
        self.answer, self.calls = answer, 0

    def open(self, resources: object) -> None:
        pass

    def close(self) -> None:
        pass

    def route(self, request: object, candidates: object) -> Any:
        self.calls += 1
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.mark.parametrize(
    "answer",
    [
        RuntimeError("no"),
        None,
        Decision([], "none"),
        Decision(["large", "large"], "twice"),
        Decision(["other"], "unknown"),
        Decision(["large"], "scored", {"large": float("inf")}),
    ],
)
async def test_a_broken_router_is_replaced_by_the_configured_order(
    text: TextModel, answer: object
) -> None:
    broken = Broken(answer)
    first, second = FakeFleet(ANSWER), FakeFleet(ANSWER)
    async with running(
        text, first, others={"large": second}, routes=[route_over(broken)]
    ) as gateway:
        assert [(await told(gateway, ASKED))[:2] for _ in range(5)] == [(200, "nano")] * 5
    assert broken.calls == 3


@pytest.mark.parametrize("stream", [False, True])
async def test_responses_and_batches_of_prompts_fall_back_too(
    text: TextModel, tmp_path: Path, stream: bool
) -> None:
    async with town(
        text,
        tmp_path / "s",
        fails(LOST),
        others={"large": FakeFleet(ANSWER)},
        routes=[fallback()],
    ) as here:
        body = {"model": "smart", "input": "hi", "max_output_tokens": 8, "stream": stream}
        answer = await here.gateway.http.post("/v1/responses", json=body)
        assert answer.status_code == 200
        assert answer.headers["x-gatewayd-target"] == "large"
        assert text.tokenizer.decode([300, 301, 302]) in answer.text
        prompts = {"model": "smart", "prompt": [[7], [8]], "max_tokens": 8, "stream": stream}
        several = await here.gateway.http.post("/v1/completions", json=prompts)
        assert several.status_code == 200
        assert several.headers["x-gatewayd-target"] == "large"


async def test_every_failure_is_of_the_contract() -> None:
    found, classes = set(), [GatewayError]
    for one in classes:
        classes += one.__subclasses__()
        found.add(one.failure)
    assert found - {""} <= set(FAILURES)
    assert ContextLengthExceeded.failure in FAILURES


async def _charged(here: Town) -> list[tuple[str, str, int, int]]:
    await here.durable.tenancy.ledger.flush()
    return [
        (row["model"], row["outcome"], row["prompt_tokens"], row["completion_tokens"])
        for row in await here.rows(usage)
    ]


async def test_a_thousand_of_a_thousand_are_served_and_charged_once(
    text: TextModel, tmp_path: Path
) -> None:
    """One of two targets dies in the middle: running requests are lost, later ones refused."""
    second = FakeFleet(ANSWER)
    running_jobs: list[Job] = []
    is_dead = asyncio.Event()

    async def mortal(job: Job) -> None:
        if is_dead.is_set():
            return await fails(EngineUnavailable("no engine serves"))(job)
        running_jobs.append(job)
        if len(running_jobs) < 400:
            return await ANSWER(job)
        job.compute()  # the prompt is computed, no token generated
        if len(running_jobs) == 420:
            is_dead.set()
        await is_dead.wait()
        return await fails(LOST)(job)

    async with town(
        text, tmp_path / "s", mortal, others={"large": second}, routes=[fallback()]
    ) as here:
        await here.tenant("a", most_tokens=10_000_000)
        key = await here.key("a", scopes=["infer:smart"])
        served: dict[str, int] = {}
        slots = asyncio.Semaphore(250)

        async def one(at: int) -> None:
            body = {**ASKED, "stream": bool(at % 2)}
            async with slots:
                answer = await here.post("/v1/chat/completions", key, body)
            assert answer.status_code == 200, answer.text
            assert "error" not in answer.text
            target = answer.headers["x-gatewayd-target"]
            served[target] = served.get(target, 0) + 1

        await asyncio.gather(*[one(at) for at in range(1000)])
        assert sum(served.values()) == 1000
        assert min(served.values()) >= 100
        rows = await _charged(here)
        assert len(rows) == 1000
        assert {row[1:] for row in rows} == {("stop", rows[0][2], 3)}
        assert {name: sum(row[0] == name for row in rows) for name in served} == served
        await here.check_books()
        assert (await here.budget("a"))["used_tokens"] == sum(row[2] + row[3] for row in rows)


async def test_a_key_for_the_route_alone_reaches_its_targets_through_it(
    text: TextModel, tmp_path: Path
) -> None:
    async with town(
        text, tmp_path / "s", ANSWER, others={"large": FakeFleet(ANSWER)}, routes=[fallback()]
    ) as here:
        await here.tenant("a")
        key = await here.key("a", scopes=["infer:smart", "models:read"])
        other = await here.key("a", scopes=["infer:nano"])
        assert (await here.post("/v1/chat/completions", key, ASKED)).status_code == 200
        direct = await here.post("/v1/chat/completions", key, CHAT)
        assert direct.status_code == 403
        assert (await here.post("/v1/chat/completions", other, ASKED)).status_code == 403
        listed = await here.gateway.http.get("/v1/models", headers=bearer(key))
        (route,) = listed.json()["data"]
        assert (route["id"], route["routes_to"]) == ("smart", ["nano", "large"])
