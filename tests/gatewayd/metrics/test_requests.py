"""Request metrics: counted once, at the engine that served them."""

from __future__ import annotations

import asyncio
import contextlib
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from gatewayd.engines.api import EngineRequest
from gatewayd.errors import EngineLost, GatewayError, NumericalError, QueueFull
from gatewayd.metrics.registry import Metrics
from gatewayd.metrics.requests import EndedRequest
from gatewayd.pipeline.choice import ChoiceOptions
from gatewayd.pipeline.generation import Generation, Pipeline
from gatewayd.pipeline.live_requests import LiveRequests
from gatewayd.pipeline.work import Work
from gatewayd.tenants.principal import OPERATOR
from gatewayd.text.text_model import TextModel
from gatewayd_engine.process.messages import SamplingParams
from tests.gatewayd.fake_fleet import FakeFleet, Job, fails, says
from tests.gatewayd.one_model import model_metrics

ENDED = EndedRequest(
    outcome="length",
    prompt_tokens=7,
    cached_tokens=4,
    completion_tokens=6,
    longest=4,
    is_prefilled=True,
    is_corrupted=False,
    num_preemptions=5,
    num_choices=2,
    max_tokens=3,
    queue_seconds=0.5,
    arrival=100.0,
    first=101.0,
    last=103.0,
    end=104.0,
)


def metrics() -> Metrics:
    fleet: Any = SimpleNamespace(status=list, num_pending=0)
    return model_metrics(fleet)


def value(registry: CollectorRegistry, name: str, engine: str = "0", **labels: str) -> float | None:
    found: float | None = registry.get_sample_value(
        f"vllm:{name}", {"model_name": "m", "engine": engine, **labels}
    )
    return found


def test_a_request_counts_at_the_engine_that_served_it() -> None:
    made = metrics()
    made.ended(0, ENDED)
    made.ended(1, ENDED)
    made.ended(1, ENDED._replace(outcome="stop"))
    made.gap_observer(1)(0.02)
    registry = made.gateway.registry
    assert [value(registry, "prompt_tokens_total", engine) for engine in "01"] == [7, 14]
    assert value(registry, "request_success_total", "1", finished_reason="length") == 1
    assert value(registry, "inter_token_latency_seconds_count", "0") == 0
    assert value(registry, "inter_token_latency_seconds_sum", "1") == 0.02
    assert value(registry, "prompt_tokens_total", "all") is None


def test_a_request_that_no_engine_had_is_told_apart() -> None:
    made = metrics()
    made.ended(None, ENDED._replace(outcome="abort", queue_seconds=None, first=None, last=None))
    registry = made.gateway.registry
    assert value(registry, "request_success_total", "none", finished_reason="abort") == 1
    assert value(registry, "request_queue_time_seconds_count", "none") == 0
    assert value(registry, "time_to_first_token_seconds_count", "none") == 0


def test_an_idle_engine_shows_zeros() -> None:
    registry = model_metrics(FakeFleet()).gateway.registry
    assert value(registry, "request_success_total", finished_reason="stop") == 0
    assert value(registry, "e2e_request_latency_seconds_count") == 0


@pytest.mark.parametrize(
    ("name", "total"),
    [
        ("time_to_first_token_seconds", 1.0),
        ("request_queue_time_seconds", 0.5),
        ("request_prefill_time_seconds", 0.5),
        ("request_decode_time_seconds", 2.0),
        ("request_inference_time_seconds", 2.5),
        ("request_time_per_output_token_seconds", 1.0),  # three tokens for each choice
        ("e2e_request_latency_seconds", 4.0),
        ("request_prompt_tokens", 7),
        ("request_prefill_kv_computed_tokens", 3),
        ("request_generation_tokens", 6),
        ("request_max_num_generation_tokens", 4),
        ("request_num_preemptions", 5),
        ("request_params_n", 2),
        ("request_params_max_tokens", 3),
    ],
)
def test_each_histogram_has_its_value(name: str, total: float) -> None:
    made = metrics()
    for _ in range(300):  # some are folded before the scrape, some by it
        made.ended(0, ENDED)
    assert value(made.gateway.registry, f"{name}_count") == 300
    assert value(made.gateway.registry, f"{name}_sum") == 300 * total


def test_buckets_are_cumulative_and_a_bound_belongs_to_its_bucket() -> None:
    made = metrics()
    for seconds in (0.01, 0.011, 0.025, 100.0):
        made.gap_observer(0)(seconds)
    counts = [
        value(made.gateway.registry, "inter_token_latency_seconds_bucket", le=le)
        for le in ("0.01", "0.025", "0.05", "80.0", "+Inf")
    ]
    assert counts == [1, 3, 3, 3, 4]


def test_prompt_tokens_are_told_by_their_source_once_they_are_computed() -> None:
    made = metrics()
    made.ended(0, ENDED)
    made.ended(0, ENDED._replace(is_prefilled=False, outcome="abort"))
    found = {
        source: value(made.gateway.registry, "prompt_tokens_by_source_total", source=source)
        for source in ("local_compute", "local_cache_hit")
    }
    assert found == {"local_compute": 3, "local_cache_hit": 4}
    assert value(made.gateway.registry, "prompt_tokens_total") == 7
    assert value(made.gateway.registry, "prompt_tokens_cached_total") == 4
    assert value(made.gateway.registry, "request_prefill_kv_computed_tokens_count") == 1
    assert value(made.gateway.registry, "request_prompt_tokens_count") == 2


def work_of(text: TextModel, *prompts: list[int], max_tokens: int = 2) -> Work:
    params = SamplingParams(max_tokens=max_tokens)
    return Work(
        request_id="r",
        endpoint="/x",
        requests=[EngineRequest("r", prompt, params) for prompt in prompts],
        num_choices=2,
        options=ChoiceOptions(detokenizer=text.tokenizer.detokenizer),
        arrival=0.0,
        principal=OPERATOR,
        model="nano",
    )


async def counted(fleet: FakeFleet, work: Work) -> CollectorRegistry:
    """Run a request to its end."""
    made = model_metrics(fleet)
    generation = await Pipeline(fleet=fleet, metrics=made).start(work)
    with contextlib.suppress(GatewayError):
        await generation.finish()
    generation.close()
    return made.gateway.registry


async def test_prompts_of_one_request_count_where_each_was_served(text: TextModel) -> None:
    async def script(job: Job) -> None:
        job.replica = len(job.request.prompt) - 1
        await says([100, 101])(job)

    registry = await counted(FakeFleet(script), work_of(text, [7], [7, 8]))
    for engine, prompt in (("0", 1), ("1", 2)):
        assert value(registry, "request_prompt_tokens_sum", engine) == prompt
        assert value(registry, "request_prompt_tokens_count", engine) == 1
        assert value(registry, "generation_tokens_total", engine) == 4
        assert value(registry, "inter_token_latency_seconds_count", engine) == 2


async def test_tokens_count_while_requests_run_and_never_go_back(text: TextModel) -> None:
    go = [asyncio.Event() for _ in range(4)]
    seen: list[tuple[float | None, float | None]] = []

    async def script(job: Job) -> None:
        job.replica = 0
        for sink in job.sinks:
            sink.tokens([100] * 3, None)
        await go[0].wait()
        for sink in job.sinks:
            sink.restarted()  # its engine was lost, another one has it
        job.replica = 1
        await go[1].wait()
        job.sinks[0].tokens([100] * 4, None)
        await go[2].wait()
        job.replica = 0
        for sink, count in zip(job.sinks, (1, 2), strict=True):
            sink.tokens([100] * count, None)
            sink.finished("length", None)
        go[3].set()

    fleet, live = FakeFleet(script), LiveRequests[Generation]()
    made = model_metrics(fleet, running=live.generated)

    async def refresh_stats() -> None:
        await asyncio.sleep(0.01)
        scrape = {
            sample.labels["engine"]: sample.value
            for family in made.gateway.registry.collect()
            for sample in family.samples
            if sample.name == "vllm:generation_tokens_total"
        }
        seen.append((scrape.get("0"), scrape.get("1")))

    generation = await Pipeline(fleet=fleet, metrics=made, live=live).start(work_of(text, [7]))
    await refresh_stats()
    for event in go[:3]:
        event.set()
        await refresh_stats()
    await generation.finish()
    generation.close()
    await refresh_stats()
    # 6 are told before the loss; of 4 + 1 + 2 in the end, by one engine, the seventh is new.
    assert seen == [(6, None), (6, 0), (6, 4), (7, 4), (7, 4)]
    assert value(made.gateway.registry, "request_generation_tokens_sum") == 7


async def test_the_longest_choice_and_all_choices_are_told(text: TextModel) -> None:
    async def script(job: Job) -> None:
        for sink, count in zip(job.sinks, (3, 5), strict=True):
            sink.tokens([100] * count, None)
            sink.finished("length", None)

    registry = await counted(FakeFleet(script), work_of(text, [7]))
    assert value(registry, "request_max_num_generation_tokens_sum") == 5
    assert value(registry, "request_generation_tokens_sum") == 8


async def test_preemptions_of_all_choices_are_counted(text: TextModel) -> None:
    async def script(job: Job) -> None:
        for sink, count in zip(job.sinks, (2, 1), strict=True):
            for _ in range(count):
                sink.preempted()
        await says([100])(job)

    registry = await counted(FakeFleet(script), work_of(text, [7]))
    assert value(registry, "request_num_preemptions_sum") == 3
    assert value(registry, "request_num_preemptions_count") == 1


async def test_a_prompt_that_ends_at_once_was_computed(text: TextModel) -> None:
    registry = await counted(FakeFleet(says([])), work_of(text, [7, 8, 9]))
    assert value(registry, "prompt_tokens_total") == 3
    assert value(registry, "time_to_first_token_seconds_count") == 0


@pytest.mark.parametrize(
    ("error", "corrupted"), [(NumericalError("not finite"), 1), (EngineLost("lost"), 0)]
)
async def test_a_failed_prompt_is_not_counted_as_computed(
    text: TextModel, error: GatewayError, corrupted: int
) -> None:
    registry = await counted(FakeFleet(fails(error)), work_of(text, [7], [8]))
    assert value(registry, "corrupted_requests_total") == corrupted
    assert value(registry, "request_success_total", finished_reason="error") == 2
    assert value(registry, "prompt_tokens_total") == 0


@pytest.mark.parametrize(
    ("by_tokens", "reason"), [(False, "max_num_queued_reqs"), (True, "max_num_queued_tokens")]
)
async def test_a_refused_request_counts_by_the_cap_alone(
    text: TextModel, by_tokens: bool, reason: str
) -> None:
    fleet = FakeFleet()
    fleet.refusal = QueueFull("full", by_tokens=by_tokens)
    made = model_metrics(fleet)
    with pytest.raises(QueueFull):
        await Pipeline(fleet=fleet, metrics=made).start(work_of(text, [7]))
    found = {
        key: made.gateway.registry.get_sample_value(
            "vllm:admission_rejections_total", {"model_name": "m", "reason": key}
        )
        for key in ("max_num_queued_reqs", "max_num_queued_tokens")
    }
    assert found == {**dict.fromkeys(found, 0), reason: 1}
    assert value(made.gateway.registry, "request_success_total", finished_reason="error") == 0
