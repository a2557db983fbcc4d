"""Streams: chunks are written without the stream's task, which has the ends and the exceptions."""

from __future__ import annotations

import asyncio
import json
from contextvars import Context
from typing import Any

import httpx
import pytest

from gatewayd.http.openai.chat_wire import ChatWire
from gatewayd.http.openai.sse_stream import SseStream
from gatewayd.pipeline.generation import Generation
from gatewayd.pipeline.output_signal import OutputSignal
from gatewayd.text.text_model import TextModel
from gatewayd.tracing import request_trace
from tests.gatewayd.fake_fleet import FakeFleet, Job, says
from tests.gatewayd.gateway import CHAT, Gateway, running, until
from tests.gatewayd.http.sse_events import events

IDS = [300 + 7 * i for i in range(60)]


def texts(found: list[Any], index: int) -> str:
    """What a choice said."""
    deltas = [one["choices"][0] for one in found]
    return "".join(d["delta"].get("content") or "" for d in deltas if d["index"] == index)


async def streamed(gateway: Gateway, **fields: Any) -> list[Any]:
    answer = await gateway.http.post(
        "/v1/chat/completions", json={**CHAT, "stream": True, "max_tokens": 100, **fields}
    )
    return events(answer.text)


@pytest.mark.parametrize("n", [1, 3])
async def test_the_task_wakes_at_the_ends_of_a_stream_alone(
    text: TextModel, monkeypatch: pytest.MonkeyPatch, n: int
) -> None:
    waits = []
    waiter = OutputSignal.waiter

    def counted(output: OutputSignal) -> asyncio.Future[None]:
        waits.append(output)
        return waiter(output)

    monkeypatch.setattr(OutputSignal, "waiter", counted)
    async with running(text, FakeFleet(says(IDS, delay=0.002))) as gateway:
        found = await streamed(gateway, n=n)
    whole = text.tokenizer.decode(IDS)
    assert [texts(found, index) for index in range(n)] == [whole] * n
    assert len(found) > 40 * n, "the chunks of several steps were written together"
    assert 1 <= len(waits) <= 4


async def test_chunks_are_encoded_in_the_context_of_their_request(
    text: TextModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    traces = set()
    chunk = ChatWire.chunk

    def looked(*given: Any) -> bytes:
        trace = request_trace.current()
        traces.add(None if trace is None else trace.answered_id)
        return chunk(*given)

    async def told(job: Job) -> None:
        await says(IDS, delay=0.001)(job)

    async def elsewhere(job: Job) -> None:
        """Frames of engines are handled in a context of their own."""
        await asyncio.create_task(told(job), context=Context())

    monkeypatch.setattr(ChatWire, "chunk", looked)
    async with running(text, FakeFleet(elsewhere)) as gateway:
        headers = {"x-request-id": "mine"}
        body = {**CHAT, "stream": True, "max_tokens": 100}
        await gateway.http.post("/v1/chat/completions", json=body, headers=headers)
    assert traces == {"mine"}


async def test_a_chunk_that_cannot_be_encoded_fails_its_request_alone(
    text: TextModel, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    chunk, write, inside = ChatWire.chunk, SseStream._write_chunks, []

    def broken(wire: ChatWire, generation: Generation, choice: Any) -> bytes:
        made = chunk(wire, generation, choice)
        if choice.completion_tokens > 20 and generation.work.requests[0].params.seed == 13:
            inside.append("mistake")
            raise ValueError("a mistake")
        return made

    def noted(stream: SseStream) -> bool:
        inside.append("write")
        return write(stream)

    monkeypatch.setattr(ChatWire, "chunk", broken)
    monkeypatch.setattr(SseStream, "_write_chunks", noted)
    async with running(text, FakeFleet(says(IDS, delay=0.002))) as gateway:
        good = asyncio.create_task(streamed(gateway))
        with pytest.raises(httpx.RemoteProtocolError, match="incomplete"):
            await streamed(gateway, seed=13)
        assert texts(await good, 0) == text.tokenizer.decode(IDS)
        outcomes = [event.outcome for event in await gateway.until_finished(2)]
    assert inside[inside.index("mistake") - 1] == "write"
    assert inside.count("mistake") == 1
    assert sorted(outcomes) == ["error", "stop"]
    assert "a mistake" in caplog.text


async def test_a_client_that_reads_slowly_gets_everything_in_larger_chunks(
    text: TextModel,
) -> None:
    longest = max(range(6, 4096), key=lambda i: len(text.tokenizer.piece(i)))
    ids = [longest] * 400_000
    fleet = FakeFleet(says(ids, step=400))
    fleet.model = fleet.model and type(fleet.model)(
        **{name: getattr(fleet.model, name) for name in fleet.model.__struct_fields__}
        | {"max_model_len": 10_000_000}
    )
    body = json.dumps({**CHAT, "stream": True, "max_tokens": len(ids)}).encode()
    async with running(text, fleet) as gateway:
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port, limit=1024)
        writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\n")
        writer.write(b"content-type: application/json\r\nconnection: close\r\n")
        writer.write(b"content-length: %d\r\n\r\n%b" % (len(body), body))
        # The engine is done long before the client reads on.
        await until(lambda: fleet.jobs and fleet.jobs[0].task and fleet.jobs[0].task.done())
        got = b""
        while piece := await reader.read(1 << 16):
            got += piece
        writer.close()
    found = [
        json.loads(line[6:])
        for line in got.split(b"\n")
        if line.startswith(b"data: ") and not line.startswith(b"data: [DONE]")
    ]
    assert texts(found, 0) == len(ids) * text.tokenizer.decode([longest])
    assert len(found) < 900
