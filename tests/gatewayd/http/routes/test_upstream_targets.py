"""Routes whose targets are models of upstreams: failures, judged answers and charges."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from gatewayd.errors import QueueFull
from gatewayd.store.tables import usage
from gatewayd.text.text_model import TextModel
from gatewayd.tracing.recent import RecentLatencyRecords
from tests.gatewayd.fake_fleet import FakeFleet, fails
from tests.gatewayd.fake_fleet import says as says_tokens
from tests.gatewayd.gateway import CHAT, Gateway, running, until
from tests.gatewayd.http.routes.routed import fallback, route_over, strategy_of
from tests.gatewayd.tenants.tenant_gateway import town
from tests.gatewayd.upstreams.fake_upstream import (
    chunk,
    event,
    fake_upstream,
    leaves,
    refuses,
    says,
    sends,
)

ASKED: dict[str, Any] = {**CHAT, "model": "smart", "max_tokens": 8}
LOCAL = says_tokens([300])


def cascade(*targets: str, **settings: Any) -> Any:
    return route_over(strategy_of("cascade", **settings), targets)


def scored(text: str, logprob: float, reason: str | None = None) -> bytes:
    logprobs = {"content": [{"token": text, "logprob": logprob}]}
    choice = {"index": 0, "delta": {"content": text}, "logprobs": logprobs, "finish_reason": reason}
    return event({"choices": [choice]})


async def answered_by(gateway: Gateway, path: str = "/v1/chat/completions", **fields: Any) -> str:
    answer = await gateway.http.post(path, json={**ASKED, **fields})
    assert answer.status_code == 200, answer.text
    return answer.headers["x-gatewayd-target"]


TOO_LONG = refuses(400, {"error": {"message": "too long", "code": "context_length_exceeded"}})


@pytest.mark.parametrize("fault", [TOO_LONG, refuses(500), refuses(429), sends(ends="cut")])
async def test_a_failed_upstream_leads_to_the_next_target(text: TextModel, fault: Any) -> None:
    async with (
        fake_upstream(fault) as upstream,
        running(
            text,
            FakeFleet(LOCAL),
            routes=[fallback("far", "nano")],
            upstreams={"one": upstream.entry()},
        ) as gateway,
    ):
        assert await answered_by(gateway) == "nano"
        assert len(upstream.bodies) == 1


async def test_a_thousand_of_a_thousand_are_served_while_one_of_two_upstreams_dies(
    text: TextModel, tmp_path: Path
) -> None:
    """From its 301st request on, the first one closes each connection before any output."""
    async with fake_upstream(*[says] * 300, leaves) as one, fake_upstream(says) as two:
        usual: dict[str, Any] = {"first_token_seconds": 30}
        upstreams = {
            "one": one.entry(**usual),
            "two": two.entry(**usual, models={"near": "theirs"}),
        }
        async with town(
            text,
            tmp_path / "s",
            LOCAL,
            upstreams=upstreams,
            routes=[fallback("far", "near")],
        ) as here:
            await here.tenant("a", most_tokens=10_000_000)
            key = await here.key("a", scopes=["infer:smart"])
            served = Counter[str]()
            slots = asyncio.Semaphore(60)

            async def ask(at: int) -> None:
                async with slots:
                    body = {**ASKED, "stream": bool(at % 2)}
                    answer = await here.post("/v1/chat/completions", key, body)
                assert answer.status_code == 200, answer.text
                assert "error" not in answer.text
                served[answer.headers["x-gatewayd-target"]] += 1

            await asyncio.gather(*[ask(at) for at in range(1000)])
            assert served == {"far": 300, "near": 700}
            assert len(one.bodies) > 300
            await here.durable.tenancy.ledger.flush()
            rows = await here.rows(usage)
            assert Counter(row["model"] for row in rows) == served
            for name, upstream in (("far", one), ("near", two)):
                counted = [
                    sum(row[part] for row in rows if row["model"] == name)
                    for part in ("prompt_tokens", "completion_tokens")
                ]
                assert tuple(counted) == upstream.charged
            await here.check_books()


async def test_what_an_upstream_cannot_do_is_done_by_the_next_target(text: TextModel) -> None:
    async with (
        fake_upstream(says) as upstream,
        running(
            text,
            FakeFleet(LOCAL),
            routes=[fallback("far", "nano")],
            upstreams={"one": upstream.entry(strategy="anthropic")},
        ) as gateway,
    ):
        assert await answered_by(gateway, "/v1/completions", messages=None, prompt=[5, 6]) == "nano"
        # Anthropic's API has no text completions, and no penalties.
        assert await answered_by(gateway, "/v1/completions", messages=None, prompt="a") == "nano"
        assert await answered_by(gateway, presence_penalty=0.5) == "nano"
        assert not upstream.bodies


async def test_a_full_target_is_the_error_if_the_next_cannot_do_it(text: TextModel) -> None:
    full = FakeFleet(fails(QueueFull("the queue is full", retry_after=3.0)))
    async with (
        fake_upstream(says) as upstream,
        running(
            text,
            full,
            routes=[fallback("nano", "far")],
            upstreams={"one": upstream.entry()},
        ) as gateway,
    ):
        body = {"model": "smart", "prompt": [5, 6], "max_tokens": 4}
        answer = await gateway.http.post("/v1/completions", json=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "overloaded")
    assert answer.headers["retry-after"] == "3"


@pytest.mark.parametrize("fields", [{}, {"logprobs": False}, {"logprobs": True}])
@pytest.mark.parametrize(("logprob", "target"), [(-0.1, "far"), (-3.0, "nano")])
async def test_an_answer_is_judged_by_the_log_probabilities_of_the_upstream(
    text: TextModel, fields: dict[str, Any], logprob: float, target: str
) -> None:
    answer = sends(scored("a", logprob), scored("b", logprob, "stop"))
    async with (
        fake_upstream(answer) as upstream,
        running(
            text,
            FakeFleet(LOCAL),
            routes=[cascade("far", "nano")],
            upstreams={"one": upstream.entry()},
        ) as gateway,
    ):
        assert await answered_by(gateway, **fields) == target
        assert upstream.bodies[0]["logprobs"] is True


@pytest.mark.parametrize("strategy", ["openai", "anthropic"])
async def test_an_upstream_without_log_probabilities_is_judged_by_the_other_checks(
    text: TextModel, strategy: str
) -> None:
    recent = RecentLatencyRecords()
    if strategy == "openai":
        no = refuses(400, {"error": {"message": "unknown field", "param": "logprobs"}})
        answers = [no, says]
    else:
        start = {"usage": {"input_tokens": 3, "output_tokens": 1}}
        block = {"type": "content_block_delta", "index": 0}
        end = {"delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 1}}
        answers = [
            sends(
                event({"type": "message_start", "message": start}),
                event({**block, "delta": {"type": "text_delta", "text": "Hi"}}),
                event({"type": "message_delta", **end}),
                event({"type": "message_stop"}),
            )
        ]
    async with (
        fake_upstream(*answers) as upstream,
        running(
            text,
            FakeFleet(LOCAL),
            routes=[cascade("far", "nano")],
            upstreams={"one": upstream.entry(strategy=strategy)},
            recent=recent,
        ) as gateway,
    ):
        assert await answered_by(gateway) == "far"
        await until(lambda: len(recent))
    [record] = recent.newest(1)
    assert record.route is not None
    [attempt] = record.route.attempts
    assert (attempt.detail, attempt.score) == ("no log-probabilities", None)


async def test_a_tool_call_is_an_answer(text: TextModel) -> None:
    function = {"name": "look", "arguments": "{}"}
    call = {"index": 0, "delta": {"tool_calls": [{"index": 0, "id": "c", "function": function}]}}
    async with (
        fake_upstream(sends(event({"choices": [call]}), chunk(reason="tool_calls"))) as upstream,
        running(
            text,
            FakeFleet(LOCAL),
            routes=[cascade("far", "nano", rejected_phrases=["never"])],
            upstreams={"one": upstream.entry()},
        ) as gateway,
    ):
        tools = [{"type": "function", "function": {"name": "look"}}]
        assert await answered_by(gateway, tools=tools) == "far"


async def test_samples_that_failed_are_not_charged(text: TextModel, tmp_path: Path) -> None:
    counts = event({"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 1}})
    good = sends(scored("yes", -0.1), chunk(reason="stop"), counts)
    async with (
        fake_upstream(good, sends(scored("y", -0.1), ends="cut")) as upstream,
        town(
            text,
            tmp_path / "s",
            LOCAL,
            routes=[cascade("far", "nano", samples=2)],
            upstreams={"one": upstream.entry()},
        ) as here,
    ):
        await here.tenant("a", most_tokens=100_000)
        key = await here.key("a")
        answer = await here.post("/v1/chat/completions", key, ASKED)
        assert answer.headers["x-gatewayd-target"] == "far"
        await until(lambda: not here.gateway.upstreams[0].fleet.num_unfinished)
        await here.check_books()
        rows = await here.rows(usage)
    charged = [(row["prompt_tokens"], row["completion_tokens"]) for row in rows]
    assert sorted(charged)[-1] == (5, 1)
    assert sum(prompt for prompt, _ in charged) == 5


async def test_a_route_without_served_targets_is_listed_and_not_served(text: TextModel) -> None:
    route = fallback("gone", "lost")
    async with running(text, FakeFleet(LOCAL), routes=[route]) as gateway:
        models = {model.id: model async for model in gateway.openai.models.list()}
        extra: Any = models["smart"].model_extra
        assert (extra["max_model_len"], extra["routes_to"]) == (None, ["gone", "lost"])
        for path, fields in (("/v1/chat/completions", {}), ("/tokenize", {"prompt": "a"})):
            answer = await gateway.http.post(path, json={**CHAT, **fields, "model": "smart"})
            error = answer.json()["error"]
            assert (answer.status_code, error["code"]) == (503, "engine_unavailable"), path
            assert error["message"] == "no target of the route 'smart' is served now"
