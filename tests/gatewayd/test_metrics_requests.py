"""Requests on ``/metrics``: counted at the engine that served them, each value once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from gatewayd.engines.seam import EngineRequest
from gatewayd.metrics import Metrics
from gatewayd.metrics_requests import Ended
from gatewayd.pipeline import Pipeline, Work
from gatewayd.pipeline_choice import ChoiceOptions
from gatewayd.text.model import TextModel
from gatewayd_engine.messages import SamplingParams
from tests.gatewayd.fake_fleet import FakeFleet, Job, says

ENDED = Ended(
    outcome="length",
    prompt_tokens=7,
    cached_tokens=4,
    completion_tokens=6,
    num_choices=2,
    max_tokens=3,
    queue_seconds=0.5,
    arrival=100.0,
    first=101.0,
    last=103.0,
    end=104.0,
)


def metrics() -> Metrics:
    fleet: Any = SimpleNamespace(status=list)
    return Metrics(fleet, "m", version="1", max_model_len=100)


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
    registry = made.registry
    assert [value(registry, "prompt_tokens_total", engine) for engine in "01"] == [7, 14]
    assert value(registry, "request_success_total", "1", finished_reason="length") == 1
    assert value(registry, "inter_token_latency_seconds_count", "0") == 0
    assert value(registry, "inter_token_latency_seconds_sum", "1") == 0.02
    assert value(registry, "prompt_tokens_total", "all") is None


def test_a_request_that_no_engine_had_is_told_apart() -> None:
    made = metrics()
    made.ended(None, ENDED._replace(outcome="abort", queue_seconds=None, first=None, last=None))
    registry = made.registry
    assert value(registry, "request_success_total", "none", finished_reason="abort") == 1
    assert value(registry, "request_queue_time_seconds_count", "none") == 0
    assert value(registry, "time_to_first_token_seconds_count", "none") == 0


def test_an_idle_engine_shows_zeros() -> None:
    registry = Metrics(FakeFleet(), "m", version="1", max_model_len=100).registry
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
        ("request_generation_tokens", 6),
        ("request_params_n", 2),
        ("request_params_max_tokens", 3),
    ],
)
def test_each_histogram_has_its_value(name: str, total: float) -> None:
    made = metrics()
    for _ in range(300):  # some are folded before the scrape, some by it
        made.ended(0, ENDED)
    assert value(made.registry, f"{name}_count") == 300
    assert value(made.registry, f"{name}_sum") == 300 * total


def test_buckets_are_cumulative_and_a_bound_belongs_to_its_bucket() -> None:
    made = metrics()
    for seconds in (0.01, 0.011, 0.025, 100.0):
        made.gap_observer(0)(seconds)
    counts = [
        value(made.registry, "inter_token_latency_seconds_bucket", le=le)
        for le in ("0.01", "0.025", "0.05", "80.0", "+Inf")
    ]
    assert counts == [1, 3, 3, 3, 4]


async def test_prompts_of_one_request_count_where_each_was_served(text: TextModel) -> None:
    async def script(job: Job) -> None:
        job.replica = len(job.request.prompt) - 1
        await says([100, 101])(job)

    fleet = FakeFleet(script)
    made = Metrics(fleet, "m", version="1", max_model_len=100)
    params = SamplingParams(max_tokens=2)
    work = Work(
        request_id="r",
        endpoint="/x",
        requests=[EngineRequest("r", prompt, params) for prompt in ([7], [7, 8])],
        num_choices=2,
        options=ChoiceOptions(detokenizer=text.tokenizer.detokenizer),
        arrival=0.0,
    )
    generation = Pipeline(fleet=fleet, metrics=made).start(work)
    await generation.finish()
    generation.close()
    for engine, prompt in (("0", 1), ("1", 2)):
        assert value(made.registry, "request_prompt_tokens_sum", engine) == prompt
        assert value(made.registry, "request_prompt_tokens_count", engine) == 1
        assert value(made.registry, "generation_tokens_total", engine) == 4
        assert value(made.registry, "inter_token_latency_seconds_count", engine) == 2
