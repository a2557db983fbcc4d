"""Large bodies: the event loop goes on serving others."""

from __future__ import annotations

import asyncio
import gc
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gatewayd.errors import InvalidRequest
from gatewayd.http.parse import check
from gatewayd.http.schema.chat import ChatRequest
from gatewayd.text.template import ChatTemplate
from gatewayd.text.text_model import TextModel
from gatewayd_proto_anthropic.strategy import Anthropic
from gatewayd_proto_ollama.config import OllamaConfig
from gatewayd_proto_ollama.strategy import Ollama
from tests.gatewayd.fake_fleet import CONTEXT, FakeFleet, model_info, says
from tests.gatewayd.gateway import Gateway, running
from tests.gatewayd.http.event_loop_gaps import gaps
from tests.gatewayd.store_fixtures import opened

MOST_SECONDS = 0.4
"""Of a core's work. It is below 0.03, and was 0.15 on a slower machine: one parse in C of all that
a body may be, which nothing interrupts. On the event loop each of these took 0.5 to 2.2 there."""

NESTED: dict[str, Any] = {"a": [[]] * 1_900_000}
"""The most objects that 8 MiB may be, and their text."""
USER = {"role": "user", "content": "hi"}
QUESTION = {"type": "predicate", "instructions": "is it"}
CALL = {"id": "a", "function": {"name": "f", "arguments": "{}"}}


def chat(*turns: Any) -> dict[str, Any]:
    return {"messages": [USER, *turns], "max_tokens": 2}


def calls() -> dict[str, Any]:
    """Few characters in very many objects."""
    return chat(*[{"role": "assistant", "content": "x", "tool_calls": [CALL] * 128}] * 850)


def arguments() -> dict[str, Any]:
    function = {"name": "f", "arguments": json.dumps(NESTED)}
    return chat({"role": "assistant", "tool_calls": [{"id": "a", "function": function}]})


def tool_use() -> dict[str, Any]:
    use = {"type": "tool_use", "id": "a", "name": "f", "input": NESTED}
    result = {"type": "tool_result", "tool_use_id": "a", "content": "x"}
    return chat({"role": "assistant", "content": [use]}, {"role": "user", "content": [result]})


def ollamas_call() -> dict[str, Any]:
    call = {"function": {"name": "f", "arguments": NESTED}}
    return chat({"role": "assistant", "content": "", "tool_calls": [call]})


def parts() -> dict[str, Any]:
    content = [{"type": "input_text", "text": ""}] * 200_000
    return {"input": [{"role": "user", "content": content}, USER], "max_output_tokens": 16}


async def worst_gap(gateway: Gateway, path: str, body: bytes) -> float:
    """Send a body and watch the event loop, which is the gateway's own, until it is answered.

    Returns:
        The longest time for which the loop did nothing else, in seconds; but for that in which no
        thread of this process computed: others had the processors then.
    """
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    gc.collect()
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    async with gaps() as found:
        writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode())
        for at in range(0, len(body), 1 << 18):
            writer.write(body[at : at + (1 << 18)])
            await writer.drain()
        status = await reader.readline()
        await asyncio.sleep(0.05)  # what is left of the body goes
    writer.close()
    assert status.split()[1] in (b"200", b"400"), status
    return max(found.each)


@pytest.mark.flaky(reruns=2)
@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/chat/completions", calls),
        ("/v1/chat/completions", arguments),
        ("/v1/messages", tool_use),
        ("/api/chat", ollamas_call),
        ("/api/generate", lambda: {"prompt": "x", "options": {"junk": NESTED}}),
        ("/v1/responses", parts),
        ("/v1/decisions", lambda: {**parts(), "questions": [QUESTION]}),
    ],
)
async def test_a_large_body_keeps_nobody_waiting(
    text: TextModel,
    fresh_store: Path,
    tmp_path: Path,
    path: str,
    fields: Callable[[], dict[str, Any]],
) -> None:
    body = json.dumps({"model": "nano", **fields()}, separators=(",", ":")).encode()
    protocols: list[tuple[str, Any]] = [
        ("anthropic", Anthropic()),
        ("ollama", Ollama(OllamaConfig())),
    ]
    with opened(tmp_path) as durable:
        fleet = FakeFleet(says([300]))
        async with running(text, fleet, durable=durable, protocols=protocols) as gateway:
            gap = await worst_gap(gateway, path, body)
    assert gap < MOST_SECONDS


@pytest.mark.parametrize(
    ("arguments", "context", "threads", "status"),
    [
        ("{}", CONTEXT, ["MainThread"], 200),
        (json.dumps({"a": [[]] * 80_000}), 10**6, ["gatewayd-body_0"], 200),
        # No context holds it: it is neither parsed nor rendered.
        (json.dumps({"a": [[]] * 80_000}), CONTEXT, [], 400),
    ],
)
async def test_what_is_large_is_rendered_in_a_thread_if_it_can_fit(
    text: TextModel,
    monkeypatch: pytest.MonkeyPatch,
    arguments: str,
    context: int,
    threads: list[str],
    status: int,
) -> None:
    seen: list[str] = []
    real = ChatTemplate.render

    def render(self: ChatTemplate, *args: Any, **more: Any) -> str:
        seen.append(threading.current_thread().name.replace("_1", "_0"))
        return real(self, *args, **more)

    monkeypatch.setattr(ChatTemplate, "render", render)
    function = {"name": "f", "arguments": arguments}
    body = chat({"role": "assistant", "tool_calls": [{"id": "a", "function": function}]})
    async with running(text, FakeFleet(says([300]), model_info(context))) as gateway:
        answer = await gateway.http.post("/v1/chat/completions", json={"model": "nano", **body})
    assert (seen, answer.status_code) == (threads, status)
    if status != 200:
        error = answer.json()["error"]
        assert (error["code"], error["param"]) == ("context_length_exceeded", "messages")
        assert f"holds at most {CONTEXT * text.tokenizer.longest_token}" in error["message"]


def test_messages_have_so_many_parts_and_calls_together() -> None:
    parts = {"role": "user", "content": [{"type": "text", "text": "a"}] * 1000}
    most = {"model": "m", "messages": [parts] * 32}
    assert len(check(ChatRequest, most)[0].messages) == 32
    called = {"role": "assistant", "tool_calls": [CALL] * 128}
    with pytest.raises(InvalidRequest, match="more than 32768 parts and calls") as refusal:
        check(ChatRequest, {"model": "m", "messages": [parts] * 32 + [called] * 8})
    assert refusal.value.param == "messages"
