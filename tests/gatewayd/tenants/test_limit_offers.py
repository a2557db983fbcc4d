"""Limit offers: refusals say what would be accepted, and it is."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from gatewayd.text.text_model import TextModel
from tests.gatewayd.fake_fleet import says
from tests.gatewayd.store_fixtures import copy_of
from tests.gatewayd.tenants.tenant_gateway import Town, town

COMPLETIONS, CHAT, RESPONSES = "/v1/completions", "/v1/chat/completions", "/v1/responses"
MESSAGES = [{"role": "user", "content": "hi"}]
ASKS: list[tuple[str, str, dict[str, Any]]] = [
    (COMPLETIONS, "max_tokens", {"prompt": [7, 8, 9], "max_tokens": 900}),
    (COMPLETIONS, "max_tokens", {"prompt": [[7, 8], [9]], "max_tokens": 400, "n": 2}),
    (CHAT, "max_completion_tokens", {"messages": MESSAGES, "max_completion_tokens": 900}),
    (CHAT, "max_tokens", {"messages": MESSAGES, "max_tokens": 900}),
    (CHAT, "max_tokens", {"messages": MESSAGES}),
    (RESPONSES, "max_output_tokens", {"input": "hi", "max_output_tokens": 900}),
]


@pytest.fixture
def folder(fresh_store: Path, tmp_path: Path) -> Path:
    return copy_of(fresh_store, tmp_path / "store")


async def refused(here: Town, key: str, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    answer = await here.post(path, key, body)
    assert answer.status_code == 429, answer.text
    found: list[dict[str, Any]] = answer.json()["error"].get("offers", [])
    return found


@pytest.mark.parametrize(
    "terms",
    [
        {"tokens_per_minute": 2500},
        {"most_micros": 700},
        {"most_tokens": 500, "most_micros": 900, "budget_period": "day"},
    ],
)
@pytest.mark.parametrize(("path", "param", "fields"), ASKS)
async def test_an_answer_that_fits_is_offered_and_taken(
    text: TextModel,
    folder: Path,
    terms: dict[str, Any],
    path: str,
    param: str,
    fields: dict[str, Any],
) -> None:
    async with town(text, folder, says([300])) as here:
        await here.act("PUT", "/admin/prices", {"model": "*", "input": 10**6, "output": 10**6})
        await here.tenant("a", **terms)
        key, body = await here.key("a"), {"model": "nano", **fields}
        if "tokens_per_minute" in terms:
            # An answer that ends at once: what was taken comes back, and some is gone.
            await here.post(COMPLETIONS, key, {**ASKS[0][2], "model": "nano"})
            gate = here.durable.tenancy.directory._accounts["a"]._gate
            assert gate._tokens is not None
            gate._tokens.consume(gate._tokens.level - 800)
        (offer, *later) = await refused(here, key, path, body)
        assert offer.keys() == {param}
        more = {param: offer[param] + 60}
        assert (await here.post(path, key, body | more)).status_code == 429, "it is the most"
        answer = await here.post(path, key, body | offer)
        assert answer.status_code == 200, answer.text
        waits = "tokens_per_minute" in terms
        assert [one.keys() for one in later] == [{"after_seconds"}] * waits


async def test_when_there_is_a_budget_again_is_offered_where_it_will_do(
    text: TextModel, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [time.time()]
    monkeypatch.setattr("gatewayd.store.clock.StoreClock.now", lambda clock: now[0])
    body = {"model": "nano", "prompt": [7] * 30, "max_tokens": 10}
    async with town(text, folder, says([300] * 10)) as here:
        await here.tenant("a", most_tokens=45, budget_period="day")
        key = await here.key("a")
        assert (await here.post(COMPLETIONS, key, body)).status_code == 200
        (offer,) = await refused(here, key, COMPLETIONS, body)
        now[0] += offer["after_seconds"] - 2
        assert await refused(here, key, COMPLETIONS, body)
        now[0] += 2
        assert (await here.post(COMPLETIONS, key, body)).status_code == 200
        assert await refused(here, key, COMPLETIONS, body | {"prompt": [7] * 50}) == []


async def test_when_a_limit_has_room_is_offered(text: TextModel, folder: Path) -> None:
    body = {"model": "nano", "prompt": [7], "max_tokens": 10}
    async with town(text, folder, says([300])) as here:
        await here.tenant("a", requests_per_minute=600)
        key = await here.key("a")
        bucket = here.durable.tenancy.directory._accounts["a"]._gate._work.bucket
        assert bucket is not None
        clock = [0.0]
        bucket._clock = lambda: clock[0]
        bucket._seen, bucket._level = 0.0, 0.25
        (offer,) = await refused(here, key, COMPLETIONS, body)
        assert offer == {"after_seconds": pytest.approx(0.075, abs=0.001)}
        clock[0] += offer["after_seconds"]
        assert (await here.post(COMPLETIONS, key, body)).status_code == 200
