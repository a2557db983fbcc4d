"""The real clients of all APIs get the same from a route as from its model."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from typing import Any

import anthropic
import numpy as np
import ollama
import openai
import pytest
from huggingface_hub import InferenceClient

from gatewayd.admin.client import call
from tests.daemon.conftest import NANO_DAEMON, Running
from tests.daemon.forked_daemons import ROOT, forker

triton = pytest.importorskip("tritonclient.grpc")

FILE = """
[server]
api_key = "gw_test_0123456789"
[store]
path = "{folder}/store"
[admin]
socket = "{folder}/admin.sock"
[protocol]
strategies = ["anthropic", "ollama", "tgi", "kserve"]
[protocol.kserve]
port = 0
[models.model]
path = "embedded:nano"
[routes.route]
targets = ["model"]
"""
ASKED = "What does json.dumps do?"
PROMPT = "def add(a, b):"
CHAT: Any = [{"role": "user", "content": ASKED}]


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Running, dict[str, str]]]:
    """A daemon, and a key for the model and one for the route."""
    folder = tmp_path_factory.mktemp("clients")
    file, log = folder / "gatewayd.toml", folder / "log"
    file.write_text(FILE.format(folder=folder))
    arguments = [*NANO_DAEMON, "--config", str(file)]
    running = Running(forker().start(arguments, dict(os.environ), log, ROOT), log)
    socket = str(folder / "admin.sock")
    try:
        running.wait_ready()
        call(socket, "POST", "/admin/tenants", {"tenant": "a", "terms": {}})
        made = {
            name: call(socket, "POST", "/admin/keys", {"tenant": "a", "scopes": [f"infer:{name}"]})[
                "secret"
            ]
            for name in ("model", "route")
        }
        yield running, made
        assert running.stop() == 0
    finally:
        running.process.kill()
        running.process.wait()


def by_openai(daemon: Running, key: str, name: str) -> list[str]:
    with openai.OpenAI(base_url=f"{daemon.url}/v1", api_key=key, max_retries=0) as client:
        fields: Any = {"model": name, "messages": CHAT, "max_tokens": 12, "temperature": 0}
        whole = client.chat.completions.create(**fields)
        parts = client.chat.completions.create(**fields, stream=True)
        streamed = "".join(one.choices[0].delta.content or "" for one in parts)
        response = client.responses.create(
            model=name, input=ASKED, max_output_tokens=12, temperature=0
        )
        assert {whole.model, response.model} == {name}
    return [whole.choices[0].message.content or "", streamed, response.output_text]


def by_anthropic(daemon: Running, key: str, name: str) -> list[str]:
    with anthropic.Anthropic(base_url=daemon.url, api_key=key, max_retries=0) as client:
        fields: Any = {"model": name, "messages": CHAT, "max_tokens": 12}
        whole = client.messages.create(**fields, extra_body={"temperature": 0})
        with client.messages.stream(**fields, extra_body={"temperature": 0}) as stream:
            streamed = "".join(stream.text_stream)
        assert whole.model == name
    return ["".join(getattr(one, "text", "") for one in whole.content), streamed]


def by_ollama(daemon: Running, key: str, name: str) -> list[str]:
    headers, options = {"authorization": f"Bearer {key}"}, {"temperature": 0, "num_predict": 12}
    with ollama.Client(host=daemon.url, headers=headers) as client:
        whole = client.chat(name, CHAT, options=options)
        parts = client.chat(name, CHAT, options=options, stream=True)
        streamed = "".join(one.message.content or "" for one in parts)
    return [whole.message.content or "", streamed]


def by_hub(daemon: Running, key: str, name: str) -> list[str]:
    """TGI's requests have no model: it is the one that the key may use."""
    client = InferenceClient(base_url=daemon.url, token=key, timeout=30)
    detailed: Any = client.text_generation(PROMPT, max_new_tokens=12, details=True)
    parts: Any = client.text_generation(PROMPT, max_new_tokens=12, stream=True)
    chat: Any = client.chat_completion(CHAT, model=name, max_tokens=12, temperature=0)
    assert detailed.details.generated_tokens == 12
    return [detailed.generated_text, "".join(parts), chat.choices[0].message.content]


def by_kserve(daemon: Running, key: str, name: str) -> list[str]:
    (address,) = re.findall(r"gRPC API listens on ([0-9.]+:\d+)", daemon.log.read_text())
    headers = {"authorization": f"Bearer {key}"}
    given = triton.InferInput("text_input", [1], "BYTES")
    given.set_data_from_numpy(np.array([PROMPT.encode()], dtype=np.object_))
    with triton.InferenceServerClient(address) as client:
        assert client.is_model_ready(name, headers=headers)
        options = {"max_tokens": 12, "temperature": 0.0}
        found = client.infer(name, [given], headers=headers, parameters=options)
    return [found.as_numpy("text_output")[0].decode()]


@pytest.mark.parametrize("ask", [by_openai, by_anthropic, by_ollama, by_hub, by_kserve])
def test_a_route_answers_as_its_model(
    keys: tuple[Running, dict[str, str]], ask: Callable[[Running, str, str], list[str]]
) -> None:
    daemon, secrets = keys
    wanted, found = (ask(daemon, secrets[name], name) for name in ("model", "route"))
    assert found == wanted
    assert all(found)
