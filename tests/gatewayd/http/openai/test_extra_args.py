"""Extra arguments for plugins: passed to the engine unchanged, within bounds."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from gatewayd.text.text_model import TextModel
from tests.gatewayd.fake_fleet import FakeFleet, says
from tests.gatewayd.gateway import running


async def test_extra_args_reach_the_engine(text: TextModel) -> None:
    wishes = {"bonus": 0.5, "mode": "strict", "on": True, "times": 3}
    async with running(text, FakeFleet(says([100]))) as gateway:
        await gateway.openai.completions.create(
            model="nano", prompt="x", extra_body={"extra_args": wishes}
        )
        assert gateway.fleet.jobs[0].request.params.extra == wishes


@pytest.mark.parametrize(
    "wishes",
    [
        {str(i): 1 for i in range(17)},
        {"a": "x" * 257},
        {"a" * 65: 1},
        {"": 1},
        {"a": [1]},
        {"a": {"b": 1}},
        {"a": None},
        [1],
    ],
)
async def test_extra_args_out_of_bounds_are_refused(text: TextModel, wishes: Any) -> None:
    async with running(text, FakeFleet(says([100]))) as gateway:
        with pytest.raises(openai.BadRequestError) as refusal:
            await gateway.openai.completions.create(
                model="nano", prompt="x", extra_body={"extra_args": wishes}
            )
    assert str(refusal.value.param).startswith("extra_args")
