"""Large answers: written outside the event loop; oversized texts are refused."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pytest

from gatewayd.http.openai import sse_stream
from gatewayd.http.openai.chat_prompt import most_counted
from gatewayd.text.text_model import TextModel
from tests.gatewayd.fake_fleet import CONTEXT, FakeFleet, Job, hangs, scored
from tests.gatewayd.gateway import COMPLETION, Gateway, running, until
from tests.gatewayd.http.event_loop_gaps import gaps

NUM_PROMPTS, LENGTH, K = 48, 2000, 20
PROMPT = [300 + i for i in range(LENGTH)]
ECHO = {
    **COMPLETION,
    "prompt": [PROMPT] * NUM_PROMPTS,
    "echo": True,
    "logprobs": K,
    "max_tokens": 0,
}
LONGEST_GAP = 0.4
"""Of all the work: the loop did nine tenths of it at once, and now does less than a twentieth."""

T = TypeVar("T")


def scores() -> FakeFleet:
    """Each prompt is scored; what that costs is the engine's, so it is made before."""
    ready = [[scored(i, K) for i in PROMPT[1:]] for _ in range(NUM_PROMPTS)]

    async def script(job: Job) -> None:
        (sink,) = job.sinks
        sink.admitted(0, 0.001)
        sink.prompt_logprobs(ready.pop())
        sink.tokens([100], [scored(100, K)])
        await asyncio.sleep(0)
        sink.finished("length", None)

    return FakeFleet(script)


async def with_longest_gap(work: Awaitable[T]) -> tuple[T, float]:
    """Do it; also the share of all its work for which the loop did nothing else."""
    async with gaps() as found:
        answer = await work
    return answer, found.share


async def post(gateway: Gateway, path: str, body: dict[str, Any]) -> bytes:
    """The raw answer: this loop is the client's too, and must not wait for it to be parsed."""
    content = json.dumps(body).encode()
    headers = {"content-type": "application/json"}
    async with gateway.http.stream(
        "POST", path, content=content, headers=headers, timeout=60
    ) as response:
        assert response.status_code == 200
        return b"".join([part async for part in response.aiter_raw()])


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.flaky(reruns=2)
async def test_an_echo_of_many_scored_prompts_leaves_the_loop_alone(
    text: TextModel, is_stream: bool
) -> None:
    async with running(text, scores()) as gateway:
        asked = post(gateway, "/v1/completions", {**ECHO, "stream": is_stream})
        answer, gap = await with_longest_gap(asked)
    if is_stream:
        events = answer.decode().split("\n\n")
        assert events[-2:] == ["data: [DONE]", ""]
        chunks = [json.loads(event.removeprefix("data: ")) for event in events[:-2]]
        choices = [choice for chunk in chunks for choice in chunk["choices"]]
    else:
        choices = json.loads(answer)["choices"]
    assert [choice["index"] for choice in choices] == list(range(NUM_PROMPTS))
    for choice in choices:
        assert choice["finish_reason"] == "length"
        columns = choice["logprobs"]
        assert columns["token_logprobs"] == [None] + [-0.5] * (LENGTH - 1)
        assert {len(columns[name]) for name in columns} == {LENGTH}
    assert gap < LONGEST_GAP


@pytest.mark.flaky(reruns=2)
async def test_a_client_that_leaves_a_large_answer_is_not_written_for(text: TextModel) -> None:
    fleet = scores()
    async with running(text, fleet) as gateway:
        asked = asyncio.create_task(post(gateway, "/v1/completions", ECHO))
        await until(lambda: len(fleet.jobs) == NUM_PROMPTS)
        await asyncio.gather(*[job.task for job in fleet.jobs if job.task])
        asked.cancel()
        began = time.process_time()
        finished = await gateway.until_finished()
        took = time.process_time() - began
    assert finished[0].outcome == "abort"
    assert took < 0.5  # of more than 1.1 for all of it


@pytest.mark.flaky(reruns=2)
async def test_encoding_a_long_text_leaves_the_loop_alone(text: TextModel) -> None:
    body = {"prompt": "\u4e2d\u6587\u5b57" * ((128 << 10) // 3), "return_token_strs": True}
    async with running(text, FakeFleet(hangs)) as gateway:
        answer, gap = await with_longest_gap(post(gateway, "/tokenize", body))
    told = json.loads(answer)
    assert told["count"] == len(told["tokens"]) == len(told["token_strs"]) > 128 << 10
    assert gap < LONGEST_GAP


MOST = most_counted(CONTEXT)


@pytest.mark.parametrize("field", ["prompt", "messages"])
async def test_a_text_has_an_end(text: TextModel, field: str) -> None:
    def body(length: int) -> dict[str, Any]:
        words = "word " * (length // 5 + 1)
        half = {"role": "user", "content": words[: length // 2]}
        return {field: words[:length] if field == "prompt" else [half, half]}

    async with running(text, FakeFleet()) as gateway:
        refused = await gateway.http.post("/tokenize", json=body(MOST + 2))
        served = await gateway.http.post("/tokenize", json=body(MOST), timeout=60)
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == field
    assert f"the maximum is {MOST}" in refused.json()["error"]["message"]
    assert served.status_code == 200
    assert served.json()["count"] > 25_000


async def test_a_choice_that_ends_while_another_is_written_tells_its_end(
    text: TextModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_other_written = asyncio.Event()
    num_written = 0

    async def slowly(work: Callable[[], None]) -> None:
        nonlocal num_written
        num_written += 1
        if num_written == 2:
            is_other_written.set()
            await asyncio.sleep(0.05)
        work()

    async def script(job: Job) -> None:
        (sink,) = job.sinks
        sink.admitted(0, 0.001)
        sink.prompt_logprobs([scored(i, K) for i in PROMPT[1:]])
        sink.tokens([100], [scored(100, K)])
        if job.request.request_id.endswith("-0"):
            await is_other_written.wait()
        sink.finished("length", None)

    monkeypatch.setattr(sse_stream, "run_in_thread", slowly)
    body = {**ECHO, "prompt": [PROMPT] * 2, "max_tokens": 1, "stream": True}
    async with running(text, FakeFleet(script)) as gateway:
        answer = await asyncio.wait_for(post(gateway, "/v1/completions", body), 30)
    chunks = [json.loads(e.removeprefix("data: ")) for e in answer.decode().split("\n\n")[:-2]]
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    ends = {one["index"]: one["finish_reason"] for one in choices if one["finish_reason"]}
    assert ends == {0: "length", 1: "length"}
