"""Request memory: freed after the answer, though the connection stays."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

from gatewayd.engines.api import EngineRequest
from gatewayd.errors import EngineUnavailable
from gatewayd.pipeline.work import Work
from gatewayd.text.text_model import TextModel
from tests.gatewayd.fake_fleet import FakeFleet, says
from tests.gatewayd.gateway import running, until

BODY: dict[str, Any] = {"model": "nano", "prompt": [5, 6, 7], "max_tokens": 2}


def count() -> int:
    gc.collect()
    return sum(isinstance(one, Work | EngineRequest) for one in gc.get_objects())


async def test_connections_that_wait_for_another_request_keep_nothing_of_the_last(
    text: TextModel,
) -> None:
    before, fleet = count(), FakeFleet(says([300]))
    async with running(text, fleet) as gateway:
        posts = [gateway.http.post("/v1/completions", json=BODY) for _ in range(4)]
        assert [answer.status_code for answer in await asyncio.gather(*posts)] == [200] * 4
        fleet.refusal = EngineUnavailable("none")
        assert (await gateway.http.post("/v1/completions", json=BODY)).status_code == 503
        fleet.refusal = None  # its traceback has the request
        fleet.jobs.clear()
        await until(lambda: count() == before)
