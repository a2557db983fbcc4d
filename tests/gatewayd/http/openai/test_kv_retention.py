"""KV retention: from a request's body to the engines."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from gatewayd.text.text_model import TextModel
from tests.gatewayd.fake_fleet import FakeFleet, says
from tests.gatewayd.gateway import running


@pytest.mark.parametrize(
    ("wish", "retention"),
    [
        ({"priority": 90, "seconds": 60}, (90, 60.0)),
        ({"priority": 0}, (0, 300.0)),
        ({"priority": 100, "seconds": 0.5}, (100, 0.5)),
        (None, (50, 0.0)),
    ],
)
async def test_a_wish_reaches_the_engine(
    text: TextModel, wish: Any, retention: tuple[int, float]
) -> None:
    async with running(text, FakeFleet(says([100]))) as gateway:
        body = {"kv_retention": wish}
        await gateway.openai.completions.create(model="nano", prompt="x", extra_body=body)
        await gateway.openai.chat.completions.create(
            model="nano", messages=[{"role": "user", "content": "x"}], extra_body=body
        )
        assert [job.request.retention for job in gateway.fleet.jobs] == [retention] * 2


@pytest.mark.parametrize(
    ("wish", "param"),
    [
        ({"priority": 101}, "kv_retention.priority"),
        ({"priority": -1}, "kv_retention.priority"),
        ({"priority": 5.5}, "kv_retention.priority"),
        ({"seconds": 60}, "kv_retention.priority"),
        ({"priority": 60, "seconds": 0}, "kv_retention.seconds"),
        ({"priority": 60, "seconds": 86401}, "kv_retention.seconds"),
        ({"priority": 60, "seconds": "60"}, "kv_retention.seconds"),
        ("long", "kv_retention"),
    ],
)
async def test_a_wish_out_of_bounds_is_refused_by_name(
    text: TextModel, wish: Any, param: str
) -> None:
    async with running(text, FakeFleet(says([100]))) as gateway:
        with pytest.raises(openai.BadRequestError) as refusal:
            await gateway.openai.completions.create(
                model="nano", prompt="x", extra_body={"kv_retention": wish}
            )
    assert refusal.value.param == param
