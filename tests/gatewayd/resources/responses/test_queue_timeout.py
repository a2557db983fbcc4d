"""Queue timeout of a response: 504, or failed in the background."""

from __future__ import annotations

import asyncio
from pathlib import Path

import openai
import pytest

from gatewayd.text.text_model import TextModel
from tests.gatewayd.fake_fleet import FakeFleet, Job, hangs, says
from tests.gatewayd.gateway import until
from tests.gatewayd.responses_gateway import ANSWER, ask, checked, serving


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("store", [False, True])
async def test_who_still_waits_ends_as_504_and_the_engine_forgets_it(
    text: TextModel, tmp_path: Path, stream: bool, store: bool
) -> None:
    async with serving(text, tmp_path, hangs) as gateway:
        with pytest.raises(openai.InternalServerError) as caught:
            await ask(gateway, stream=stream, store=store, extra_body={"queue_timeout": 0.2})
        error = caught.value
        assert (error.status_code, error.code) == (504, "queue_timeout")
        assert (error.param, "0.2 s" in error.message) == ("queue_timeout", True)
        await until(lambda: all(job.gone.is_set() for job in gateway.fleet.jobs))


async def test_one_in_the_background_is_kept_as_failed(text: TextModel, tmp_path: Path) -> None:
    async with serving(text, tmp_path, hangs) as gateway:
        first = await ask(gateway, background=True, extra_body={"queue_timeout": 0.5})
        assert checked(first).status == "in_progress"
        async with asyncio.timeout(30):
            while (found := await gateway.openai.responses.retrieve(first.id)).status != "failed":
                await asyncio.sleep(0.02)
        assert checked(found).error is not None
        assert found.error is not None
        assert "queue_timeout of 0.5 s" in found.error.message
        assert all(job.gone.is_set() for job in gateway.fleet.jobs)
        stream = await gateway.openai.responses.create(
            model="nano",
            input="hi",
            background=True,
            stream=True,
            extra_body={"queue_timeout": 0.5},
        )
        last = [event async for event in stream][-1]
        assert last.type == "response.failed"
        told = last.response.error
        assert told is not None
        assert "queue_timeout of 0.5 s" in told.message


@pytest.mark.parametrize("background", [False, True])
async def test_one_with_which_an_engine_has_begun_goes_on(
    text: TextModel, tmp_path: Path, background: bool
) -> None:
    async def slow(job: Job) -> None:
        for sink in job.live():
            sink.admitted(0, 0.01)
        await asyncio.sleep(0.7)
        await says(ANSWER)(job)

    async with serving(text, tmp_path, slow) as gateway:
        made = await ask(gateway, background=background, extra_body={"queue_timeout": 0.5})
        async with asyncio.timeout(30):
            while made.status == "in_progress":
                await asyncio.sleep(0.02)
                made = await gateway.openai.responses.retrieve(made.id)
        assert made.status == "completed"


@pytest.mark.parametrize("background", [False, True])
async def test_the_time_runs_while_the_model_loads(
    text: TextModel, tmp_path: Path, background: bool
) -> None:
    async with serving(text, tmp_path, says(ANSWER)) as gateway:
        never_loads(gateway.fleet)
        with pytest.raises(openai.InternalServerError) as caught:
            await ask(gateway, background=background, extra_body={"queue_timeout": 0.1})
        assert (caught.value.status_code, caught.value.code) == (504, "queue_timeout")
        listed = [job for job in gateway.fleet.jobs if not job.gone.is_set()]
        assert listed == []


def never_loads(fleet: FakeFleet) -> None:
    async def never() -> None:
        await asyncio.sleep(60)

    fleet.model = None
    fleet.wait_model = never  # type: ignore[method-assign]


@pytest.mark.parametrize("value", [0, -1, 86401, "soon", True])
async def test_a_time_out_of_bounds_is_400(text: TextModel, tmp_path: Path, value: object) -> None:
    async with serving(text, tmp_path, says(ANSWER)) as gateway:
        with pytest.raises(openai.BadRequestError) as caught:
            await ask(gateway, extra_body={"queue_timeout": value})
        assert caught.value.param == "queue_timeout"
