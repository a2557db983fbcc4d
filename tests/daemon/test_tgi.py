"""Clients of text-generation-inference: huggingface_hub over a real port."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import jsonschema
import pytest
from huggingface_hub import InferenceClient
from huggingface_hub.errors import (
    TextGenerationError,
    ValidationError,
)

from tests.daemon.conftest import Running, nano_daemon

KEY = "gw_test_0123456789"
PROMPT = "def add(a, b):"
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "size": {"enum": [1, 2]}},
    "required": ["name", "size"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """One for all, with Ollama's protocol, which has other methods of the same path."""
    folder = tmp_path_factory.mktemp("tgi")
    env = {
        "GATEWAYD_SERVER__API_KEY": KEY,
        "GATEWAYD_STORE__PATH": "temporary",
        "GATEWAYD_PROTOCOL__STRATEGIES": '["anthropic", "ollama", "tgi"]',
    }
    with nano_daemon(folder, **env) as running:
        yield running


@pytest.fixture
def client(daemon: Running) -> InferenceClient:
    return InferenceClient(base_url=daemon.url, token=KEY, timeout=30)


def post(daemon: Running, path: str, **body: Any) -> httpx.Response:
    headers = {"authorization": f"Bearer {KEY}"}
    return httpx.post(f"{daemon.url}{path}", json=body, headers=headers, timeout=30)


def completion(daemon: Running, **fields: Any) -> Any:
    """The answer of the gateway's own route, greedily."""
    body = {"model": "nano", "prompt": PROMPT, "temperature": 0, "max_tokens": 12, **fields}
    return post(daemon, "/v1/completions", **body).json()["choices"][0]


def test_a_stream_of_tokens_is_printed_as_it_comes(daemon: Running, client: Any) -> None:
    said = [token for token in client.text_generation(PROMPT, max_new_tokens=12, stream=True)]
    assert len(said) == 12
    assert "".join(said) == completion(daemon)["text"]
    assert client.text_generation(PROMPT, max_new_tokens=12) == "".join(said)


def test_details_are_those_of_a_completion(daemon: Running, client: Any) -> None:
    found = client.text_generation(
        PROMPT, max_new_tokens=12, details=True, decoder_input_details=True, top_n_tokens=3
    )
    ours = completion(daemon, return_token_ids=True, logprobs=3, prompt_logprobs=0)
    details = found.details
    assert found.generated_text == ours["text"]
    assert (details.finish_reason, details.generated_tokens) == ("length", 12)
    assert [token.id for token in details.tokens] == ours["token_ids"]
    columns = ours["logprobs"]
    assert [t.logprob for t in details.tokens] == pytest.approx(columns["token_logprobs"], abs=1e-4)
    assert "".join(token.text for token in details.tokens) == ours["text"]
    for top, expected in zip(details.top_tokens, columns["top_logprobs"], strict=True):
        scores = [one["logprob"] for one in top]
        assert scores == sorted(scores, reverse=True)
        assert {one["text"] for one in top} <= set(expected)
    assert [token.id for token in details.prefill] == ours["prompt_token_ids"]
    assert "".join(token.text for token in details.prefill).endswith(PROMPT)
    first, *rest = details.prefill
    scores = [ours["prompt_logprobs"][at + 1][str(token.id)] for at, token in enumerate(rest)]
    assert first.logprob is None
    assert [t.logprob for t in rest] == pytest.approx([s["logprob"] for s in scores], abs=1e-4)


def test_a_stream_has_the_same_details(client: Any) -> None:
    whole = client.text_generation(PROMPT, max_new_tokens=9, details=True, top_n_tokens=2)
    parts = list(
        client.text_generation(PROMPT, max_new_tokens=9, details=True, stream=True, top_n_tokens=2)
    )
    assert [part.token.id for part in parts] == [token.id for token in whole.details.tokens]
    assert [part.index for part in parts] == list(range(1, 10))
    assert [len(part.top_tokens) for part in parts] == [2] * 9
    assert parts[-1].generated_text == whole.generated_text
    assert parts[-1].details.generated_tokens == 9
    assert parts[-1].details.input_length > 3
    assert all(part.details is None for part in parts[:-1])


def test_a_reported_seed_repeats_an_answer(client: Any) -> None:
    ask: dict[str, Any] = {"max_new_tokens": 12, "do_sample": True, "temperature": 1.5}
    first = client.text_generation(PROMPT, details=True, **ask)
    again = client.text_generation(PROMPT, details=True, seed=first.details.seed, **ask)
    assert first.details.seed is not None
    assert again.generated_text == first.generated_text
    assert len({client.text_generation(PROMPT, **ask) for _ in range(4)}) > 1


def test_a_stream_that_the_model_ends_has_an_empty_last_token(client: Any) -> None:
    short: Any = {"type": "regex", "value": "[a-z]{3}"}
    parts: Any = list(
        client.text_generation(PROMPT, max_new_tokens=40, details=True, stream=True, grammar=short)
    )
    last = parts[-1]
    assert last.details.finish_reason == "eos_token"
    assert last.details.generated_tokens == len(parts) - 1
    assert (last.token.special, last.token.text) == (True, "")
    assert last.generated_text == "".join(part.token.text for part in parts)
    assert re.fullmatch("[a-z]{3}", last.generated_text)


def test_a_prompt_is_truncated_to_its_end(client: Any) -> None:
    ask: dict[str, Any] = {"max_new_tokens": 8, "details": True, "decoder_input_details": True}
    whole = client.text_generation("import os\n" * 900 + PROMPT, truncate=6, **ask)
    short = client.text_generation(PROMPT, truncate=6, **ask)
    ids = [token.id for token in short.details.prefill]
    assert [token.id for token in whole.details.prefill][-len(ids) + 1 :] == ids[1:]
    assert len(whole.details.prefill) == 6
    with pytest.raises(ValidationError, match=r"parameters\.truncate is 2048; it must be from 1"):
        client.text_generation(PROMPT, truncate=2048)


def test_a_stop_string_ends_the_text(client: Any) -> None:
    plain = client.text_generation(PROMPT, max_new_tokens=12)
    stop = plain[len(plain) // 2 :][:3]
    found: Any = client.text_generation(
        PROMPT, max_new_tokens=12, stop=[stop], details=True, return_full_text=True
    )
    assert found.generated_text == PROMPT + plain[: plain.index(stop)] + stop
    assert found.details.finish_reason == "stop_sequence"


def test_the_best_of_several_answers_is_returned(client: Any) -> None:
    found: Any = client.text_generation(
        PROMPT, max_new_tokens=6, details=True, do_sample=True, temperature=2.0, best_of=4
    )

    def mean(tokens: Any) -> float:
        scores = [dict(token)["logprob"] for token in tokens]
        return float(sum(scores)) / len(scores)

    others = [mean(one.tokens) for one in found.details.best_of_sequences]
    assert len(others) == 3
    assert mean(found.details.tokens) >= max(others)


def test_grammars_are_followed(client: Any) -> None:
    ask: dict[str, Any] = {"max_new_tokens": 60, "temperature": 1.5}
    wrapped = {"type": "json_schema", "value": {"name": "thing", "schema": SCHEMA}}
    for grammar in ({"type": "json", "value": SCHEMA}, wrapped):
        text = client.text_generation("A thing: ", grammar=grammar, **ask)
        jsonschema.validate(json.loads(text), SCHEMA)
    date: Any = {"type": "regex", "value": r"\d{4}-\d\d"}
    assert re.fullmatch(r"\d{4}-\d\d", client.text_generation("In ", grammar=date, **ask))


def test_errors_are_the_clients_exceptions(daemon: Running, client: Any) -> None:
    with pytest.raises(ValidationError, match=r"parameters\.typical_p is not supported: use"):
        client.text_generation(PROMPT, typical_p=0.5)
    with pytest.raises(ValidationError, match=r"parameters\.temperature is 7.*maximum is 2"):
        client.text_generation(PROMPT, temperature=7, stream=True)
    with pytest.raises(ValidationError, match="max_new_tokens is 5000, together 5006"):
        client.text_generation(PROMPT, max_new_tokens=5000)
    refused_client = InferenceClient(base_url=daemon.url, token="wrong-key-000000", timeout=30)
    with pytest.raises(TextGenerationError):
        refused_client.text_generation(PROMPT)
    refused = post(daemon, "/generate", inputs="")
    assert (refused.status_code, refused.json()["error_type"]) == (400, "validation")


def test_the_paths_of_both_protocols_are_served(daemon: Running) -> None:
    headers = {"authorization": f"Bearer {KEY}"}
    assert httpx.get(daemon.url, headers=headers).text == "Ollama is running"
    info = httpx.get(f"{daemon.url}/info", headers=headers).json()
    assert (info["model_id"], info["max_total_tokens"]) == ("nano", 2048)
    wrong = httpx.delete(daemon.url, headers=headers)
    assert wrong.status_code == 405
    assert all(method in wrong.json()["error"] for method in ("GET", "POST"))
    assert post(daemon, "/").json()["error_type"] == "validation"
    direct = post(daemon, "/generate", inputs=PROMPT, parameters={"max_new_tokens": 3, "mine": 1})
    assert direct.headers["x-gateway-ignored-params"] == "parameters.mine"
    assert set(direct.json()) == {"generated_text"}


def test_chats_are_those_of_the_gateway(client: Any) -> None:
    messages = [{"role": "user", "content": "What does os.path.join do?"}]
    whole: Any = client.chat_completion(messages, model="nano", max_tokens=9, temperature=0)
    parts: Any = client.chat_completion(
        messages, model="nano", max_tokens=9, temperature=0, stream=True
    )
    text = "".join(part.choices[0].delta.content or "" for part in parts if part.choices)
    assert text == whole.choices[0].message.content != ""
