"""Cascade: small answers are judged before they are sent, and charged whether sent or not."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from gatewayd.errors import EngineUnavailable, QueueFull
from gatewayd.store.tables import usage
from gatewayd.text.text_model import TextModel
from gatewayd.tracing.recent import RecentLatencyRecords
from gatewayd_hooks.targets.model_routing import AttemptVerdict, AttemptView, Decision
from tests.gatewayd.fake_fleet import FakeFleet, Job, fails, hangs, says
from tests.gatewayd.gateway import CHAT, running, until
from tests.gatewayd.http.routes.routed import route_over, strategy_of
from tests.gatewayd.tenants.tenant_gateway import town

ASKED = {**CHAT, "model": "smart", "max_tokens": 8}
SMALL, LARGE = says([300, 301]), says([302, 303, 304])
"""Scored with a log-probability of -0.5 for each token."""


def cascade(min_logprob: float, **settings: Any) -> Any:
    return route_over(strategy_of("cascade", min_logprob=min_logprob, **settings))


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("min_logprob", "who"), [(-0.6, "nano"), (-0.4, "large")])
async def test_an_uncertain_answer_is_replaced_and_a_certain_one_sent(
    text: TextModel, stream: bool, min_logprob: float, who: str
) -> None:
    recent = RecentLatencyRecords()
    first, second = FakeFleet(SMALL), FakeFleet(LARGE)
    routes = [cascade(min_logprob)]
    async with running(
        text, first, others={"large": second}, routes=routes, recent=recent
    ) as gateway:
        body = {**ASKED, "stream": stream, "stream_options": {"include_usage": True}}
        if not stream:
            del body["stream_options"]
        answer = await gateway.http.post("/v1/chat/completions", json=body)
        assert answer.headers["x-gatewayd-target"] == who
        # Log-probabilities are requested of the judged attempt, and not shown.
        assert first.jobs[0].request.params.logprobs == 0
        assert '"logprob"' not in answer.text
        expected = text.tokenizer.decode([300, 301] if who == "nano" else [302, 303, 304])
        if stream:
            assert answer.text.count("[DONE]") == 1
            assert f'"completion_tokens":{2 if who == "nano" else 3}' in answer.text
        else:
            assert answer.json()["choices"][0]["message"]["content"] == expected
        await until(lambda: len(recent))
        (record,) = recent.newest(9)
        assert record.route is not None
        judged = record.route.attempts[0]
        assert (judged.target, judged.score) == ("nano", -0.5)
        if who == "large":
            assert [one.outcome for one in record.route.attempts] == ["rejected", "answered"]
            assert judged.completion_tokens == 2
            assert "below -0.4" in judged.detail
        assert record.completion_tokens == (2 if who == "nano" else 3)


async def test_log_probabilities_that_are_requested_are_shown(text: TextModel) -> None:
    first, second = FakeFleet(SMALL), FakeFleet(LARGE)
    async with running(text, first, others={"large": second}, routes=[cascade(-0.6)]) as gateway:
        body = {**ASKED, "logprobs": True, "top_logprobs": 2}
        answer = await gateway.http.post("/v1/chat/completions", json=body)
        assert len(answer.json()["choices"][0]["logprobs"]["content"]) == 2
        assert first.jobs[0].request.params.logprobs == 2


async def test_both_answers_are_charged_each_as_its_own_model(
    text: TextModel, tmp_path: Path
) -> None:
    async with town(
        text,
        tmp_path / "s",
        SMALL,
        others={"large": FakeFleet(LARGE)},
        routes=[cascade(-0.4)],
    ) as here:
        await here.tenant("a", most_tokens=10_000)
        for model, price in (("nano", 10**6), ("large", 10**7)):
            priced = {"model": model, "input": price, "cached": 0, "output": price}
            await here.act("PUT", "/admin/prices", priced)
        key = await here.key("a")
        answer = await here.post("/v1/chat/completions", key, ASKED)
        prompt = answer.json()["usage"]["prompt_tokens"]
        rows = {row["model"]: row for row in await here.rows(usage)}
        assert {name: row["completion_tokens"] for name, row in rows.items()} == {
            "nano": 2,
            "large": 3,
        }
        assert rows["nano"]["micros"] == prompt + 2
        assert rows["large"]["micros"] == 10 * (prompt + 3)
        assert len({row["request_id"] for row in rows.values()}) == 1
        await here.check_books()


@pytest.mark.parametrize("error", [QueueFull("full"), EngineUnavailable("none")])
async def test_a_rejected_answer_is_better_than_none(
    text: TextModel, error: QueueFull | EngineUnavailable
) -> None:
    first, second = FakeFleet(SMALL), FakeFleet(fails(error))
    async with running(text, first, others={"large": second}, routes=[cascade(-0.4)]) as gateway:
        answer = await gateway.http.post("/v1/chat/completions", json=ASKED)
        assert answer.status_code == 200
        assert answer.headers["x-gatewayd-target"] == "nano"
        assert answer.json()["usage"]["completion_tokens"] == 2


async def test_a_failed_first_target_leads_to_the_next(text: TextModel) -> None:
    first, second = FakeFleet(fails(EngineUnavailable("none"), [300])), FakeFleet(LARGE)
    async with running(text, first, others={"large": second}, routes=[cascade(-0.6)]) as gateway:
        answer = await gateway.http.post("/v1/chat/completions", json={**ASKED, "stream": True})
        assert answer.headers["x-gatewayd-target"] == "large"


@pytest.mark.parametrize(
    ("samples", "who"),
    [
        ([[300, 301]] * 3, "nano"),
        ([[300, 301], [300, 301], [999]], "nano"),
        ([[300, 301], [998], [999]], "large"),
    ],
)
async def test_further_answers_show_whether_the_first_is_consistent(
    text: TextModel, tmp_path: Path, samples: Sequence[Sequence[int]], who: str
) -> None:
    async def script(job: Job) -> None:
        if len(job.sinks) == 1:
            return await SMALL(job)
        assert (job.request.params.temperature, job.request.params.seed) == (0.7, None)
        job.compute()
        for sink, ids in zip(job.sinks, samples, strict=True):
            sink.tokens(ids, job.score(ids))
            sink.finished("stop", 2)

    routes = [cascade(-0.6, samples=3)]
    async with town(
        text, tmp_path / "s", script, others={"large": FakeFleet(LARGE)}, routes=routes
    ) as here:
        await here.tenant("a", most_tokens=10_000)
        key = await here.key("a")
        body = {**ASKED, "temperature": 0, "seed": 7}
        answer = await here.post("/v1/chat/completions", key, body)
        assert answer.headers["x-gatewayd-target"] == who
        charged = sorted((row["model"], row["completion_tokens"]) for row in await here.rows(usage))
        sampled = ("nano", sum(map(len, samples)))
        large = [("large", 3)] if who == "large" else []
        assert charged == sorted([*large, ("nano", 2), sampled])


async def test_who_leaves_during_the_second_answer_is_charged_for_the_first(
    text: TextModel, tmp_path: Path
) -> None:
    second = FakeFleet(hangs)
    async with town(
        text, tmp_path / "s", SMALL, others={"large": second}, routes=[cascade(-0.4)]
    ) as here:
        await here.tenant("a", most_tokens=10_000)
        key = await here.key("a")
        task = asyncio.create_task(here.post("/v1/chat/completions", key, ASKED))
        await until(lambda: second.jobs)
        task.cancel()
        await asyncio.wait([task])
        await asyncio.wait_for(second.jobs[0].gone.wait(), 10)
        await here.gateway.until_finished(2)
        rows = {row["model"]: row for row in await here.rows(usage)}
        assert rows["nano"]["completion_tokens"] == 2
        assert rows["large"]["completion_tokens"] == 0
        await here.check_books()


class Broken:
    """Judges by raising."""

    def __init__(self, answer: object) -> None:
        self.answer, self.calls = answer, 0

    def open(self, resources: object) -> None:
        pass

    def close(self) -> None:
        pass

    def route(self, request: object, candidates: Sequence[Any]) -> Decision:
        return Decision([one.name for one in candidates], "as configured", is_judged=True)

    def judge(self, attempt: AttemptView) -> AttemptVerdict:
        self.calls += 1
        if isinstance(self.answer, Exception):
            raise self.answer
        verdict: AttemptVerdict = self.answer  # type: ignore[assignment]
        return verdict


@pytest.mark.parametrize(
    "answer",
    [RuntimeError("no"), "yes", AttemptVerdict(is_accepted=False, reason="", score=float("nan"))],
)
async def test_a_broken_judge_accepts_and_is_called_three_times(
    text: TextModel, answer: object
) -> None:
    broken = Broken(answer)
    first, second = FakeFleet(SMALL), FakeFleet(LARGE)
    async with running(
        text, first, others={"large": second}, routes=[route_over(broken)]
    ) as gateway:
        for _ in range(5):
            found = await gateway.http.post("/v1/chat/completions", json=ASKED)
            assert found.headers["x-gatewayd-target"] == "nano"
    assert broken.calls == 3
