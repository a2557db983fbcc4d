"""Cache and priority fields: from a request's body to the engines."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from gatewayd.engines.api import EngineRequest
from gatewayd.text.text_model import TextModel
from gatewayd_hooks.scheduling import Priority
from tests.gatewayd.fake_fleet import FakeFleet, says
from tests.gatewayd.gateway import CHAT, COMPLETION, running


async def told(text: TextModel, fields: dict[str, Any]) -> EngineRequest:
    """What the engine gets of both routes, which must be the same."""
    async with running(text, FakeFleet(says([100]))) as gateway:
        for path, body in (("/v1/chat/completions", CHAT), ("/v1/completions", COMPLETION)):
            answer = await gateway.http.post(path, json={**body, **fields})
            assert answer.status_code == 200, answer.text
            assert "x-gateway-ignored-params" not in answer.headers
        chat, plain = (job.request for job in gateway.fleet.jobs)
    for name in ("salt", "cache_key", "priority", "retention"):
        assert getattr(chat, name) == getattr(plain, name)
    return chat


async def test_salts_keep_apart_and_equal_ones_share(text: TextModel) -> None:
    one, same, other = [(await told(text, {"cache_salt": salt})).salt for salt in ("a", "a", "b")]
    assert one == same != other
    assert (await told(text, {})).salt == b""
    assert len(one) == 16


@pytest.mark.parametrize("salt", ["", "a" * 129, "a@b", "a/b", "a\\b", "a\0b", 7])
async def test_a_salt_that_none_may_be_is_refused(text: TextModel, salt: object) -> None:
    async with running(text, FakeFleet()) as gateway:
        with pytest.raises(openai.BadRequestError) as refusal:
            await gateway.openai.completions.create(
                model="nano", prompt="x", extra_body={"cache_salt": salt}
            )
    assert refusal.value.param == "cache_salt"


async def test_a_cache_key_reaches_the_router(text: TextModel) -> None:
    assert (await told(text, {"prompt_cache_key": "thread 7"})).cache_key == "thread 7"
    assert (await told(text, {})).cache_key == ""


@pytest.mark.parametrize(
    ("fields", "retention"),
    [
        ({"prompt_cache_retention": "24h"}, (75, 86400.0)),
        ({"prompt_cache_retention": "in_memory"}, (50, 0.0)),
        ({"prompt_cache_retention": "24h", "kv_retention": {"priority": 1}}, (1, 300.0)),
    ],
)
async def test_retention_by_openais_name(
    text: TextModel, fields: dict[str, Any], retention: tuple[int, float]
) -> None:
    assert (await told(text, fields)).retention == retention


@pytest.mark.parametrize(
    ("fields", "priority"),
    [
        ({"priority": -7}, Priority.REALTIME),
        ({"priority": 0}, Priority.STANDARD),
        ({"priority": 12}, Priority.BATCH),
        ({"priority": "realtime", "service_tier": "flex"}, Priority.REALTIME),
        ({"priority": 0, "service_tier": "flex"}, Priority.STANDARD),
        ({"service_tier": "priority"}, Priority.REALTIME),
        ({"service_tier": "auto"}, Priority.STANDARD),
    ],
)
async def test_classes_by_name_number_and_tier(
    text: TextModel, fields: dict[str, Any], priority: Priority
) -> None:
    assert (await told(text, fields)).priority == priority


@pytest.mark.parametrize(
    ("fields", "tier"),
    [
        ({}, None),
        ({"priority": "batch"}, None),
        ({"service_tier": "auto"}, "default"),
        ({"service_tier": "fast"}, "priority"),
        ({"service_tier": "flex"}, "flex"),
        ({"service_tier": "flex", "priority": -1}, "priority"),
    ],
)
async def test_an_answer_tells_the_tier_that_it_got(
    text: TextModel, fields: dict[str, Any], tier: str | None
) -> None:
    asked: dict[str, Any] = {"model": "nano", "messages": CHAT["messages"], "extra_body": fields}
    async with running(text, FakeFleet(says([100]))) as gateway:
        whole = await gateway.openai.chat.completions.create(**asked)
        stream = await gateway.openai.chat.completions.create(stream=True, **asked)
        told = {chunk.service_tier async for chunk in stream}
    assert whole.service_tier == tier
    assert told == {tier}
