"""Answers of megabytes are written outside the event loop, and texts of megabytes refused."""

from __future__ import annotations

import asyncio
import json
import time
from types import SimpleNamespace
from typing import Any

import pytest

from gatewayd.http.completion_wire import CompletionWire
from gatewayd.http.generate import _written
from gatewayd.http.wire import Identity
from gatewayd.text.model import TextModel
from gatewayd_engine.messages import TokenLogprobs
from tests.gatewayd.fake_fleet import FakeFleet
from tests.gatewayd.gateway import running

NUM_PROMPTS, LENGTH, K = 24, 2000, 20
IDENTITY = Identity(
    id="x",
    model="nano",
    created=1,
    include_usage=False,
    continuous_usage=False,
    with_ids=False,
    with_logprobs=True,
)


def scored() -> Any:
    """A request whose prompts were scored; nothing was generated."""
    top = [-1.0] * K
    prompt = [TokenLogprobs(1, 5, -1.0, 1, list(range(300, 300 + K)), top) for _ in range(LENGTH)]
    choices = [
        SimpleNamespace(
            index=index,
            prompt_index=index,
            scored_prompt=prompt,
            take=lambda: "",
            take_scored=list,
            take_ids=list,
            finish_reason="length",
            stop_reason=None,
        )
        for index in range(NUM_PROMPTS)
    ]
    params = SimpleNamespace(logprobs=K, prompt_logprobs=K)
    requests = [SimpleNamespace(prompt=[5] * LENGTH, params=params)] * NUM_PROMPTS
    return SimpleNamespace(
        choices=choices,
        work=SimpleNamespace(num_choices=1, requests=requests),
        prompt_tokens=NUM_PROMPTS * LENGTH,
        completion_tokens=0,
        cached_tokens=0,
    )


async def longest_gap(until: asyncio.Task[Any]) -> float:
    """Seconds for which the loop did nothing else."""
    longest, last = 0.0, time.perf_counter()
    while not until.done():
        await asyncio.sleep(0.001)
        now = time.perf_counter()
        longest, last = max(longest, now - last), now
    return longest


async def test_an_echo_of_many_scored_prompts_leaves_the_loop_alone(text: TextModel) -> None:
    wire = CompletionWire(IDENTITY, text.tokenizer, ["a"] * NUM_PROMPTS)
    began = time.perf_counter()
    writing = asyncio.create_task(_written(wire, scored()))
    gap = await longest_gap(writing)
    assert gap < (time.perf_counter() - began) / 3
    choices = json.loads(writing.result())["choices"]
    assert [choice["index"] for choice in choices] == list(range(NUM_PROMPTS))
    assert {len(choice["logprobs"]["top_logprobs"]) for choice in choices} == {LENGTH}


@pytest.mark.parametrize("field", ["prompt", "messages"])
async def test_a_text_has_an_end(text: TextModel, field: str) -> None:
    def body(length: int) -> dict[str, Any]:
        words = "word " * (length // 5 + 1)
        half = {"role": "user", "content": words[: length // 2]}
        return {field: words[:length] if field == "prompt" else [half, half]}

    async with running(text, FakeFleet()) as gateway:
        refused = await gateway.http.post("/tokenize", json=body((1 << 20) + 2))
        served = await gateway.http.post("/tokenize", json=body(1 << 20), timeout=60)
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == field
    assert "the maximum is 1048576" in refused.json()["error"]["message"]
    assert served.status_code == 200
    assert served.json()["count"] > 200_000
