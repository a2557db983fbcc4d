"""Generation accounting: exactly once, however a request ends."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence

import pytest

from gatewayd.engines.api import EngineRequest, TokenSink
from gatewayd.errors import ClientGone, EngineLost, EngineUnavailable, QueueFull
from gatewayd.pipeline.choice import ChoiceOptions
from gatewayd.pipeline.generation import Generation, Pipeline
from gatewayd.pipeline.work import Work
from gatewayd.plugins.request_observers import Observers
from gatewayd.tenants.principal import OPERATOR
from gatewayd.text.text_model import TextModel
from gatewayd.tracing.latency_record import LatencyRecord
from gatewayd_engine.process.messages import SamplingParams
from gatewayd_hooks.events import RequestFinished
from tests.gatewayd.fake_fleet import FakeFleet, Job, fails, hangs, hangs_after, says
from tests.gatewayd.one_model import model_metrics


def work(text: TextModel, *, prompts: int = 1, stop: tuple[str, ...] = ()) -> Work:
    request = EngineRequest("req_1", [7, 8, 9], SamplingParams(max_tokens=8))
    return Work(
        request_id="req_1",
        endpoint="/x",
        requests=[request] * prompts,
        num_choices=2,
        options=ChoiceOptions(detokenizer=text.tokenizer.detokenizer, stop=stop),
        arrival=0.0,
        principal=OPERATOR,
        model="nano",
    )


def pipeline(fleet: FakeFleet, finished: Callable[[RequestFinished], None]) -> Pipeline:
    metrics = model_metrics(fleet, "nano")
    return Pipeline(fleet=fleet, metrics=metrics, observers=Observers(finished=finished))


async def ended(generation: Generation) -> None:
    try:
        await generation.finish()
    except (EngineLost, EngineUnavailable):
        pass
    finally:
        generation.close()
        generation.close()
        generation.abandon()


@pytest.mark.parametrize(
    ("fleet", "outcome"),
    [
        (FakeFleet(says([100, 101])), "stop"),
        (FakeFleet(says([100] * 9)), "length"),
        (FakeFleet(fails(EngineLost("lost"))), "error"),
        (FakeFleet(says([100], reason="abort")), "error"),
    ],
)
async def test_every_end_is_told_once(text: TextModel, fleet: FakeFleet, outcome: str) -> None:
    finished: list[RequestFinished] = []
    await ended(await pipeline(fleet, finished.append).start(work(text, prompts=2)))
    assert [event.outcome for event in finished] == [outcome]
    assert finished[0].prompt_tokens == 6
    assert all(job.gone.is_set() for job in fleet.jobs)


@pytest.mark.parametrize("script", [hangs, hangs_after([100])])
async def test_an_abandoned_request_is_told_once(
    text: TextModel, script: Callable[[Job], None]
) -> None:
    finished: list[RequestFinished] = []
    fleet = FakeFleet(script)  # type: ignore[arg-type]
    generation = await pipeline(fleet, finished.append).start(work(text))
    waiting = asyncio.create_task(ended(generation))
    await asyncio.sleep(0.01)
    generation.abandon()
    await waiting
    assert [event.outcome for event in finished] == ["abort"]
    assert fleet.jobs[0].gone.is_set()


@pytest.mark.parametrize(
    ("raised", "outcome", "code"),
    [
        (KeyError("ours"), "error", "internal_error"),
        (EngineUnavailable("a plugin's", retry_after=1), "error", "engine_unavailable"),
        (asyncio.CancelledError(), "abort", "client_gone"),
        (ClientGone(), "abort", "client_gone"),
        (ConnectionResetError(), "abort", "client_gone"),
    ],
)
async def test_whoever_failed_is_named_by_the_ledger(
    text: TextModel, raised: BaseException, outcome: str, code: str
) -> None:
    finished: list[RequestFinished] = []
    begun = pipeline(FakeFleet(hangs), finished.append)
    kept: list[LatencyRecord] = []
    begun.metrics.record_latency = kept.append  # type: ignore[assignment]
    generation = await begun.start(work(text))
    with pytest.raises(type(raised)), contextlib.closing(generation):
        raise raised
    assert [event.outcome for event in finished] == [outcome]
    assert kept[0].why is not None
    assert kept[0].why.code == code


async def test_all_prompts_are_sent_or_none(text: TextModel) -> None:
    class Full(FakeFleet):
        def submit(self, request: EngineRequest, sinks: Sequence[TokenSink]) -> Job:
            if self.jobs:
                raise QueueFull("full")
            return super().submit(request, sinks)

    finished: list[RequestFinished] = []
    fleet = Full(hangs)
    with pytest.raises(QueueFull):
        await pipeline(fleet, finished.append).start(work(text, prompts=2))
    assert fleet.jobs[0].gone.is_set()
    assert finished == []


async def test_an_observer_that_raises_does_not_touch_the_request(
    text: TextModel, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(event: RequestFinished) -> None:
        raise RuntimeError("observer")

    generation = await pipeline(FakeFleet(says([100])), broken).start(work(text))
    await generation.finish()
    generation.close()
    assert generation.outcome == "stop"
    assert "request observer failed" in caplog.text


async def test_a_choice_that_stops_lets_its_sibling_go_on(text: TextModel) -> None:
    words = text.tokenizer.encode("one two three")

    async def script(job: Job) -> None:
        job.sinks[0].tokens(words, None)
        job.sinks[1].tokens(words[:1], None)
        job.sinks[1].finished("length", None)

    finished: list[RequestFinished] = []
    fleet = FakeFleet(script)
    generation = await pipeline(fleet, finished.append).start(work(text, stop=(" two",)))
    await generation.finish()
    assert fleet.jobs[0].cancelled == {0}
    assert [choice.pop_text() for choice in generation.choices] == ["one", "one"]
    assert [choice.stop_reason for choice in generation.choices] == [" two", None]
    generation.close()
    assert [event.outcome for event in finished] == ["length"]


@pytest.mark.parametrize("stop", [(), ("zz",)])
async def test_half_a_character_at_the_end_is_told_with_and_without_stop_strings(
    text: TextModel, stop: tuple[str, ...]
) -> None:
    half = text.tokenizer.encode("a \U0001f469")[:-1]
    fleet = FakeFleet(says(half, reason="length"))
    generation = await pipeline(fleet, lambda event: None).start(work(text, stop=stop))
    await generation.finish()
    assert [choice.pop_text() for choice in generation.choices] == [text.tokenizer.decode(half)] * 2
    generation.close()
