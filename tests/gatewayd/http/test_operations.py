"""Models, tokens, health, metrics, ids, and documents generated from the table."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import anthropic
import pytest
from prometheus_client.parser import text_string_to_metric_families

from gatewayd.http.schema import docs
from gatewayd.http.schema.chat import ChatRequest
from gatewayd.http.schema.openapi import OPERATIONS, TABLES, document
from gatewayd.text.text_model import TextModel
from gatewayd.text.tokenizer import Tokenizer
from tests.gatewayd.fake_fleet import FakeFleet, model_info, says
from tests.gatewayd.gateway import CHAT, running
from tests.gatewayd.http.server.test_authentication import routes

ROOT = Path(__file__).parents[3]


async def test_models_are_listed_and_shown(text: TextModel) -> None:
    async with running(text, FakeFleet()) as gateway:
        listed = [model async for model in gateway.openai.models.list()]
        one = await gateway.openai.models.retrieve("gpt-test")
    assert [model.id for model in listed] == ["nano", "gpt-test"]
    assert one.model_dump()["max_model_len"] == 2048
    assert one.model_dump()["root"] == "nano"


async def test_models_are_listed_for_anthropics_client(text: TextModel) -> None:
    async with (
        running(text, FakeFleet()) as gateway,
        anthropic.AsyncAnthropic(base_url=gateway.url, api_key="none") as client,
    ):
        listed = [model async for model in client.models.list()]
        one = await client.models.retrieve("nano")
    assert [(model.id, model.type) for model in listed] == [
        ("nano", "model"),
        ("gpt-test", "model"),
    ]
    assert one.display_name == "nano"
    assert abs(one.created_at.timestamp() - time.time()) < 3600


@pytest.mark.parametrize("prefix", ["", "/v1"])
async def test_tokens_go_there_and_back(text: TextModel, prefix: str) -> None:
    sample = "def \u00fcber(): <|im_end|>"
    async with running(text, FakeFleet()) as gateway:
        there = await gateway.http.post(
            f"{prefix}/tokenize", json={"prompt": sample, "return_token_strs": True}
        )
        tokens = there.json()["tokens"]
        back = await gateway.http.post(f"{prefix}/detokenize", json={"tokens": tokens})
    assert tokens == text.tokenizer.encode(sample)
    assert there.json()["count"] == len(tokens) == len(there.json()["token_strs"])
    assert there.json()["max_model_len"] == 2048
    assert back.json() == {"prompt": sample}


async def test_messages_are_tokenized_as_a_chat_would(text: TextModel) -> None:
    async with running(text, FakeFleet(says([100]))) as gateway:
        shown = await gateway.http.post("/tokenize", json={"messages": CHAT["messages"]})
        await gateway.http.post("/v1/chat/completions", json=CHAT)
        sent = list(gateway.fleet.jobs[0].request.prompt)
        both = await gateway.http.post("/tokenize", json={**CHAT, "prompt": "x"})
        none = await gateway.http.post("/tokenize", json={})
        beyond = await gateway.http.post("/detokenize", json={"tokens": [4096]})
    assert shown.json()["tokens"] == sent
    assert [both.status_code, none.status_code, beyond.status_code] == [400, 400, 400]


async def test_long_work_on_tokens_is_bounded_and_leaves_the_event_loop(
    text: TextModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: dict[str, threading.Thread] = {}

    def noted(name: str) -> None:
        method = getattr(Tokenizer, name)

        def call(self: Tokenizer, *args: Any, **options: Any) -> Any:
            threads[name] = threading.current_thread()
            return method(self, *args, **options)

        monkeypatch.setattr(Tokenizer, name, call)

    for name in ("encode", "decode", "piece"):
        noted(name)
    limit, one = 3000, text.tokenizer.decode([7])
    body = {"prompt": "a b " * limit, "return_token_strs": True}
    async with running(text, FakeFleet(model=model_info(limit))) as gateway:
        most = await gateway.http.post("/detokenize", json={"tokens": [7] * limit})
        over = await gateway.http.post("/detokenize", json={"tokens": [7] * (limit + 1)})
        there = await gateway.http.post("/tokenize", json=body)
    assert most.json() == {"prompt": one * limit}
    assert over.status_code == 400
    assert over.json()["error"]["param"] == "tokens"
    assert "3001 ids; the maximum is the model's context, 3000" in over.json()["error"]["message"]
    assert "".join(there.json()["token_strs"]) == body["prompt"]
    assert set(threads) == {"encode", "decode", "piece"}
    assert threading.main_thread() not in threads.values()


async def test_readiness_tells_the_truth_and_liveness_does_not_care(text: TextModel) -> None:
    fleet = FakeFleet()
    async with running(text, fleet) as gateway:
        for is_ready, status in ((True, 200), (False, 503), (True, 200)):
            fleet.is_ready = is_ready
            for path in ("/readyz", "/health"):
                assert (await gateway.http.get(path)).status_code == status
            assert (await gateway.http.get("/livez")).status_code == 200
        shown = (await gateway.http.get("/readyz?verbose=1")).json()
    assert (shown["version"], shown["model"]) == ("9.9", "nano")
    assert shown["replicas"][0]["uptime_seconds"] == 12.5
    assert shown["replicas"][0]["state"] == "ready"


def samples(page: str) -> dict[str, float]:
    return {
        sample.name + str(sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


async def test_metrics_count_each_request_once(text: TextModel) -> None:
    async with running(text, FakeFleet(says([100, 101, 102], cached=4))) as gateway:
        for is_stream in (False, True):
            await gateway.http.post("/v1/chat/completions", json={**CHAT, "stream": is_stream})
        await gateway.until_finished(2)
        page = (await gateway.http.get("/metrics")).text
        prompt = len(gateway.fleet.jobs[0].request.prompt)
    found = samples(page)
    one = str([("engine", "0"), ("model_name", "nano")])
    stop = str([("engine", "0"), ("finished_reason", "stop"), ("model_name", "nano")])
    assert found["vllm:request_success_total" + stop] == 2
    assert found["vllm:prompt_tokens_total" + one] == 2 * prompt
    assert found["vllm:prompt_tokens_cached_total" + one] == 8
    assert found["vllm:generation_tokens_total" + one] == 6
    assert found["vllm:time_to_first_token_seconds_count" + one] == 2
    assert found["vllm:inter_token_latency_seconds_count" + one] == 4
    assert found["vllm:e2e_request_latency_seconds_count" + one] == 2
    assert found["vllm:request_queue_time_seconds_sum" + one] == pytest.approx(0.002)
    assert found["vllm:num_requests_running" + one] == 2
    assert found["vllm:num_requests_waiting" + one] == 3
    assert found["vllm:kv_cache_usage_perc" + one] == pytest.approx(0.2)
    assert found["gatewayd_engine_restarts_total" + one] == 1


async def test_a_clients_request_id_is_echoed_and_never_used(text: TextModel) -> None:
    async with running(text, FakeFleet(says([100]))) as gateway:
        seen = []
        for theirs in ("same-id", "same-id", "bad id", "x" * 129):
            answer = await gateway.http.post(
                "/v1/chat/completions", json=CHAT, headers={"x-request-id": theirs}
            )
            seen.append(answer.headers["x-request-id"])
        ids = [job.request.request_id for job in gateway.fleet.jobs]
        refused = await gateway.http.get("/nowhere", headers={"x-request-id": "mine"})
    assert seen[:2] == ["same-id", "same-id"]
    assert seen[2:] == ids[2:]
    assert len(set(ids)) == 4
    assert all(one.startswith("req_") for one in ids)
    assert refused.headers["x-request-id"] == "mine"


def references(node: object) -> list[str]:
    if isinstance(node, dict):
        own = [node["$ref"]] if isinstance(node.get("$ref"), str) else []
        return own + [found for value in node.values() for found in references(value)]
    if isinstance(node, list):
        return [found for value in node for found in references(value)]
    return []


async def test_the_openapi_document_is_whole_and_served(text: TextModel) -> None:
    async with running(text, FakeFleet()) as gateway:
        served: dict[str, Any] = (await gateway.http.get("/openapi.json")).json()
    assert served == document("9.9")
    assert served["openapi"] == "3.1.0"
    schemas = served["components"]["schemas"]
    assert references(served)
    for reference in references(served):
        assert reference.removeprefix("#/components/schemas/") in schemas
    described = {
        (method.upper(), path.replace("{model}", "nano"))
        for path, methods in served["paths"].items()
        for method in methods
    }
    real = {(method, path) for method, path in routes(text) if method != "HEAD"}
    assert described == real
    names = [one["operationId"] for path in served["paths"].values() for one in path.values()]
    assert len(set(names)) == len(names) == len(OPERATIONS)
    temperature = schemas["ChatRequest"]["properties"]["temperature"]
    assert {"maximum": 2, "minimum": 0, "type": "number"} in temperature["anyOf"]
    assert schemas["ChatRequest"]["properties"]["audio"]["x-gateway-support"] == "refused"


async def test_compat_tells_of_every_field_what_its_table_says(text: TextModel) -> None:
    async with running(text, FakeFleet(says([100]))) as gateway:
        told = (await gateway.http.get("/v1/gateway/compat")).json()
        by_path = {(route["method"], route["path"]): route for route in told["routes"]}
        assert len(by_path) == len(OPERATIONS)
        chat = {one["name"]: one for one in by_path["POST", "/v1/chat/completions"]["fields"]}
        assert chat.keys() == ChatRequest.model_fields.keys()
        for name, field in chat.items():
            # The report is true: what it calls refused is, and what it accepts is accepted.
            if field["support"] == "refused":
                body = {**CHAT, name: {"asks": "for something"}}
                answer = await gateway.http.post("/v1/chat/completions", json=body)
                assert (answer.status_code, answer.json()["error"]["param"]) == (400, name)
                for value in field["accepted"]:
                    answer = await gateway.http.post(
                        "/v1/chat/completions", json={**CHAT, name: value}
                    )
                    assert answer.status_code == 200, (name, value, answer.text)
            elif not field["required"]:
                answer = await gateway.http.post(
                    "/v1/chat/completions", json={**CHAT, name: field["default"]}
                )
                assert answer.status_code == 200, (name, answer.text)
    assert chat["temperature"]["schema"]["anyOf"][0] == {
        "maximum": 2,
        "minimum": 0,
        "type": "number",
    }
    assert chat["model"]["required"]
    assert chat["n"]["cost"] == "a sequence each; the prompt is computed once"


def test_the_documentation_holds_the_tables_as_they_are() -> None:
    pages = docs.rewrite(ROOT / "docs" / "api")
    for path, text in pages.items():
        assert path.read_text(encoding="utf-8") == text
    page = "".join(pages.values())
    for table in TABLES:
        assert all(f"`{name}`" in page for name in table.model_fields)
