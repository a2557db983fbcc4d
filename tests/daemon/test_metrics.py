"""``/metrics`` of a real daemon: every count and sum equals what was sent."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

NANO = ("-m", "gatewayd", "serve", "--port", "0")
SMALL = {
    "GATEWAYD_ENGINE__THREADS": "1",
    "GATEWAYD_MODEL__MAX_MODEL_LEN": "512",
    "GATEWAYD_ENGINE__KV_PAGES": "40",
}
PAGE = 16
END = 2  # the embedded model's end token
Start = Callable[..., Any]

OURS = ("admission", "router", "executor", "residency", "model_router")
"""Kinds whose strategies run in the daemon."""


def ids(seed: int, length: int) -> list[int]:
    """A prompt that shares its first token with no other."""
    return [300 + seed, *[400 + (seed * 31 + k * 7) % 3000 for k in range(length - 1)]]


@dataclass
class Page:
    """Samples of one scrape, without the labels that all have."""

    samples: dict[tuple[str, frozenset[tuple[str, str]]], float]

    @classmethod
    async def of(cls, http: httpx.AsyncClient) -> Page:
        answer = await http.get("/metrics")
        samples = {}
        for family in text_string_to_metric_families(answer.text):
            for sample in family.samples:
                engine = sample.labels.pop("engine", "0")
                # These are the daemon's own.
                is_ours = sample.labels.get("kind") in (
                    "admission",
                    "router",
                    "executor",
                    "residency",
                    "model_router",
                )
                assert engine == "0" or (is_ours and engine == "none"), sample
                assert sample.labels.pop("model_name", "nano") == "nano"
                samples[sample.name, frozenset(sample.labels.items())] = sample.value
        return cls(samples)

    def __call__(self, name: str, **labels: str) -> float:
        return self.samples[f"vllm:{name}", frozenset(labels.items())]

    def histogram(self, name: str) -> tuple[float, float]:
        """Its count, which its last bucket repeats, and its sum."""
        assert self(f"{name}_bucket", le="+Inf") == self(f"{name}_count")
        return self(f"{name}_count"), self(f"{name}_sum")


@dataclass
class Ledger:
    """What was sent, and what each answer's usage says; the oracle."""

    http: httpx.AsyncClient
    num_requests: int = 0
    values: dict[str, list[float]] = field(default_factory=dict)
    reasons: Counter[str] = field(default_factory=Counter)
    prompt: int = 0
    cached: int = 0
    generated: int = 0
    computed: int = 0
    seconds: float = 0.0

    def note(self, name: str, value: float) -> None:
        self.values.setdefault(name, []).append(value)

    async def send(
        self, *prompts: list[int], max_tokens: int, n: int = 1, cached: int = 0, **more: object
    ) -> None:
        """Send prompts of which so many tokens are in the cache."""
        began = time.monotonic()
        body = {"model": "nano", "max_tokens": max_tokens, "n": n, "temperature": 0, **more}
        body["prompt"] = prompts[0] if len(prompts) == 1 else list(prompts)
        answer = await self.http.post("/v1/completions", json=body)
        assert answer.status_code == 200, answer.text
        self.seconds += (time.monotonic() - began) * len(prompts)
        usage, choices = answer.json()["usage"], answer.json()["choices"]
        assert usage["prompt_tokens_details"]["cached_tokens"] == cached
        assert usage["prompt_tokens"] == sum(map(len, prompts))
        made = usage["completion_tokens"] // len(choices)  # all are alike here
        assert usage["completion_tokens"] == made * len(choices)
        self.prompt += usage["prompt_tokens"]
        self.cached += cached
        self.generated += usage["completion_tokens"]
        ends = {choice["finish_reason"] for choice in choices}
        assert len(ends) == 1
        for prompt in prompts:
            self.num_requests += 1
            self.reasons.update(ends)
            self.note("request_prompt_tokens", len(prompt))
            self.note("request_prefill_kv_computed_tokens", len(prompt) - cached)
            self.note("request_generation_tokens", made * n)
            self.note("request_max_num_generation_tokens", made)
            self.note("request_params_n", n)
            self.note("request_params_max_tokens", max_tokens)
            self.note("request_num_preemptions", 0)
            # The last token of an answer is not computed; forks begin with the prompt's last.
            self.computed += len(prompt) - cached + (n - 1) + n * max(0, made - 1)

    def check(self, page: Page) -> None:
        """Compare everything that is exact."""
        assert {name: page.histogram(name) for name in self.values} == {
            name: (self.num_requests, sum(values)) for name, values in self.values.items()
        }
        for reason in ("stop", "length", "abort", "error"):
            assert page("request_success_total", finished_reason=reason) == self.reasons[reason]
        assert page("prompt_tokens_total") == self.prompt
        assert page("prompt_tokens_cached_total") == self.cached
        assert page("prompt_tokens_by_source_total", source="local_cache_hit") == self.cached
        sources = page("prompt_tokens_by_source_total", source="local_compute")
        assert sources == self.prompt - self.cached
        assert page("prefix_cache_queries_total") == self.prompt
        assert page("prefix_cache_hits_total") == self.cached
        assert page("generation_tokens_total") == self.generated
        assert page("corrupted_requests_total") == 0
        steps, tokens = page.histogram("iteration_tokens_total")
        # A step that was launched before the end of an answer was known computes one more.
        assert self.computed <= tokens <= self.computed + self.reasons["stop"]
        assert 0 < steps <= self.computed


@pytest.fixture
async def ledger(start_daemon: Start) -> Any:
    daemon = start_daemon(NANO, env=SMALL)
    async with httpx.AsyncClient(base_url=daemon.url, timeout=60) as http:
        yield Ledger(http)


async def test_every_figure_is_what_was_sent(ledger: Ledger) -> None:
    first = ids(1, 40)
    forever: dict[str, Any] = {"ignore_eos": True}
    await ledger.send(first, max_tokens=8, **forever)
    await ledger.send(first, max_tokens=8, cached=39, **forever)
    await ledger.send(ids(2, 20), n=3, max_tokens=5, **forever)
    await ledger.send(ids(3, 7), ids(4, 11), max_tokens=4, **forever)
    at_once: dict[str, Any] = {"logit_bias": {str(END): 100}}
    await ledger.send(ids(5, 9), max_tokens=6, **at_once)
    assert ledger.reasons == {"length": 5, "stop": 1}
    refused = await ledger.http.post(
        "/v1/completions", json={"model": "nano", "prompt": ids(6, 600), "max_tokens": 1}
    )
    assert refused.status_code == 400
    page = await Page.of(ledger.http)
    ledger.check(page)
    # Five got tokens, in ones: 7 + 7 gaps, 3 x 4 of the choices, 3 + 3.
    assert page("inter_token_latency_seconds_count") == 32
    times = {
        name: page.histogram(name)
        for name in (
            "time_to_first_token_seconds",
            "request_prefill_time_seconds",
            "request_decode_time_seconds",
            "request_inference_time_seconds",
            "request_time_per_output_token_seconds",
        )
    }
    assert {count for count, _ in times.values()} == {5}
    queued, e2e = (
        page.histogram("request_queue_time_seconds"),
        page.histogram("e2e_request_latency_seconds"),
    )
    assert queued[0] == e2e[0] == 6
    sums = {name: total for name, (_, total) in times.items()}
    inference = sums["request_prefill_time_seconds"] + sums["request_decode_time_seconds"]
    assert sums["request_inference_time_seconds"] == pytest.approx(inference)
    assert 0 < sums["time_to_first_token_seconds"] < e2e[1] < ledger.seconds
    assert 0 < queued[1] < e2e[1]
    answers = {
        dict(labels)["status"]: value
        for (name, labels), value in page.samples.items()
        if name == "gatewayd_http_requests_total" and ("endpoint", "/v1/completions") in labels
    }
    assert answers == {"200": 5, "400": 1}


async def test_a_client_that_leaves_is_an_abort(ledger: Ledger) -> None:
    body = {"model": "nano", "prompt": ids(1, 10), "max_tokens": 400, "ignore_eos": True}
    async with ledger.http.stream("POST", "/v1/completions", json={**body, "stream": True}) as gone:
        async for _ in gone.aiter_lines():
            break
    async with asyncio.timeout(30):
        while not (page := await Page.of(ledger.http))("e2e_request_latency_seconds_count"):
            await asyncio.sleep(0.01)
        while (await Page.of(ledger.http))("num_requests_running"):
            await asyncio.sleep(0.01)
    assert page("request_success_total", finished_reason="abort") == 1
    assert page.histogram("request_prompt_tokens") == (1, 10)
    assert 1 <= page("generation_tokens_total") < 400


async def test_preemptions_of_requests_add_up_to_those_of_the_engine(ledger: Ledger) -> None:
    body = {"model": "nano", "max_tokens": 150, "ignore_eos": True}
    asked = asyncio.gather(
        *[
            ledger.http.post("/v1/completions", json={**body, "prompt": ids(k, 20)})
            for k in range(8)
        ]
    )
    early = []
    while not (page := await Page.of(ledger.http))("e2e_request_latency_seconds_count"):
        early.append(page("generation_tokens_total"))
        await asyncio.sleep(0.02)
    answers = await asked
    # They count as they come.
    assert early == sorted(early)
    assert len({tokens for tokens in early if 0 < tokens < 1200}) > 5
    assert {answer.status_code for answer in answers} == {200}
    async with asyncio.timeout(30):
        while (page := await Page.of(ledger.http))("e2e_request_latency_seconds_count") < 8:
            await asyncio.sleep(0.01)
    assert page.histogram("request_num_preemptions") == (8, page("num_preemptions_total"))
    assert page("num_preemptions_total") > 0
    # Computed again, and yet neither asked for nor answered a second time.
    assert page("prompt_tokens_total") == page("prefix_cache_queries_total") == 160
    assert page("generation_tokens_total") == 1200


@pytest.mark.parametrize(
    ("cap", "reason"),
    [
        ({"queue.max_waiting_requests": 2}, "max_num_queued_reqs"),
        ({"queue.max_waiting_tokens": 30}, "max_num_queued_tokens"),
    ],
)
async def test_a_request_without_room_counts_as_refused(
    start_daemon: Start, cap: dict[str, int], reason: str
) -> None:
    daemon = start_daemon(env={"FAKE_FAULTS": "hold"}, **cap)
    body = {"model": "nano", "max_tokens": 1, "prompt": ids(1, 20)}
    async with httpx.AsyncClient(base_url=daemon.url, timeout=60) as http:
        waiting: list[asyncio.Task[httpx.Response]] = []
        async with asyncio.timeout(30):
            while True:
                task = asyncio.create_task(http.post("/v1/completions", json=body))
                while not task.done():
                    if (await Page.of(http))("num_requests_waiting") > len(waiting):
                        break
                    await asyncio.sleep(0.01)
                if task.done():
                    break
                waiting.append(task)
        page = await Page.of(http)
        for other in waiting:
            other.cancel()
    assert task.result().status_code == 503
    for each in ("max_num_queued_reqs", "max_num_queued_tokens"):
        assert page("admission_rejections_total", reason=each) == (each == reason)
