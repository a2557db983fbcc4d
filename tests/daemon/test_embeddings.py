"""Embeddings: vectors equal transformers' hidden states of the same model."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import numpy as np
import openai
import pytest
import torch

from gatewayd.text.text_model import TextModel
from gatewayd_engine.model.embedded import folder
from tests.daemon.conftest import NANO_DAEMON, Running, StartDaemon

LONG = "def f(x):\n    return x + 1\n\n" * 120
TEXTS = ["hello", "def f(x): return x", "The <|im_end|> of a text.", LONG]

Oracle = Callable[[list[int], str], Any]


@pytest.fixture(scope="module")
def text() -> TextModel:
    return TextModel.from_folder(folder("nano"))


@pytest.fixture(scope="module")
def oracle() -> Oracle:
    """Last hidden states by transformers, pooled, float64."""
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(folder("nano"), dtype="float32")

    def pooled(ids: list[int], pooling: str) -> Any:
        with torch.no_grad():
            states = model.model(torch.tensor([ids])).last_hidden_state[0].double().numpy()
        return states.mean(axis=0) if pooling == "mean" else states[-1]

    return pooled


@pytest.fixture
def daemon(start_daemon: StartDaemon) -> Iterator[Running]:
    """Small steps, so that long texts are computed in several."""
    running = start_daemon(NANO_DAEMON, env={"GATEWAYD_ENGINE__MAX_BATCH_TOKENS": "256"})
    pid = running.engine_pid
    yield running
    assert running.engine_pid == pid
    assert not running.said("Traceback")


def unit(vector: Any) -> Any:
    return vector / np.linalg.norm(vector)


def test_vectors_are_those_of_transformers(
    daemon: Running, text: TextModel, oracle: Oracle
) -> None:
    client = openai.OpenAI(base_url=f"{daemon.url}/v1", api_key="none", max_retries=0)
    prompts = [text.tokenizer.encode(one, add_special=True) for one in TEXTS]
    assert len(prompts[-1]) > 4 * 256
    for pooling in ("mean", "last", "last", "mean"):  # again: what is cached changes nothing
        more = {"pooling": pooling, "normalize": False}
        found = client.embeddings.create(model="nano", input=TEXTS, extra_body=more)
        assert found.usage.prompt_tokens == sum(map(len, prompts))
        for one, prompt in zip(found.data, prompts, strict=True):
            np.testing.assert_allclose(one.embedding, oracle(prompt, pooling), atol=2e-4)
    usual = client.embeddings.create(model="nano", input=prompts, dimensions=100)
    for one, prompt in zip(usual.data, prompts, strict=True):
        expected = unit(oracle(prompt, "mean")[:100])
        np.testing.assert_allclose(one.embedding, expected, atol=1e-4)

    body: dict[str, Any] = {"model": "nano", "input": TEXTS}
    vectors = [
        unit(np.array(one["embedding"]))
        for one in httpx.post(f"{daemon.url}/v1/embeddings", json=body).json()["data"]
    ]
    expected = [float(vectors[0] @ one) for one in vectors[1:]]
    body = {"query": TEXTS[0], "documents": TEXTS[1:]}
    ranked = httpx.post(f"{daemon.url}/v1/rerank", json=body).json()["results"]
    assert [one["index"] for one in ranked] == sorted(range(3), key=lambda at: -expected[at])
    for one in ranked:
        assert one["relevance_score"] == pytest.approx(expected[one["index"]], abs=1e-5)
    body = {"text_1": TEXTS[0], "text_2": TEXTS[1:]}
    scored = httpx.post(f"{daemon.url}/v1/score", json=body).json()["data"]
    assert [one["score"] for one in scored] == pytest.approx(expected, abs=1e-5)


def test_a_batch_of_texts_is_embedded(daemon: Running) -> None:
    client = openai.OpenAI(base_url=f"{daemon.url}/v1", api_key="none", max_retries=0)
    bodies = [{"model": "nano", "input": text} for text in TEXTS[:2]]
    bodies.append({"model": "nano", "input": ""})
    lines = [
        {"custom_id": str(at), "method": "POST", "url": "/v1/embeddings", "body": body}
        for at, body in enumerate(bodies)
    ]
    content = b"\n".join(json.dumps(line).encode() for line in lines)
    file = client.files.create(file=("in.jsonl", content), purpose="batch")
    batch = client.batches.create(
        input_file_id=file.id, endpoint="/v1/embeddings", completion_window="24h"
    )
    deadline = time.monotonic() + 30
    while batch.status not in ("completed", "failed"):
        assert time.monotonic() < deadline, batch
        time.sleep(0.02)
        batch = client.batches.retrieve(batch.id)
    assert batch.status == "completed", batch
    assert batch.request_counts is not None
    assert (batch.request_counts.completed, batch.request_counts.failed) == (2, 1)
    assert batch.output_file_id is not None
    told = client.files.content(batch.output_file_id).text.splitlines()
    for line, text in zip(told, TEXTS[:2], strict=True):
        expected = client.embeddings.create(model="nano", input=text, encoding_format="float")
        found = json.loads(line)["response"]["body"]["data"][0]["embedding"]
        assert found == pytest.approx(expected.data[0].embedding, abs=1e-5)
