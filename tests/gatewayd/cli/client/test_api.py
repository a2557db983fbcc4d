"""API client: error shapes of real servers, and the connection's life."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from gatewayd.cli.client.api import ApiClient, ApiError

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def serving(handler: Handler) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


async def error_of(status: int, body: Any) -> ApiError:
    async def handler(request: web.Request) -> web.Response:
        if isinstance(body, str):
            return web.Response(text=body, status=status)
        return web.json_response(body, status=status)

    async with serving(handler) as url, ApiClient(url) as client:
        with pytest.raises(ApiError) as caught:
            await client.models()
    assert caught.value.status == status
    return caught.value


OPENAI = {"message": "no x", "type": "t", "param": "model", "code": "model_not_found"}
LLAMA_CPP = {"message": "Loading", "type": "unavailable_error", "code": 503}


@pytest.mark.parametrize(
    ("status", "body", "code", "message"),
    [
        (404, {"error": OPENAI}, "model_not_found", "no x"),
        (503, {"error": LLAMA_CPP}, "unavailable_error", "Loading"),
        (401, {"error": "Unauthorized"}, "http_401", "Unauthorized"),
        (400, {"object": "error", "message": "flat", "code": 400}, "http_400", "flat"),
        (502, "<html>bad gateway", "http_502", "<html>bad gateway"),
    ],
)
async def test_every_known_shape_of_an_error_gives_a_code_and_a_sentence(
    status: int, body: Any, code: str, message: str
) -> None:
    error = await error_of(status, body)
    assert (error.code, error.message) == (code, message)


@pytest.mark.parametrize(
    ("body", "words"), [({"data": []}, "serves no model"), ({"models": []}, "not a list")]
)
async def test_an_empty_or_foreign_list_of_models_is_said_so(
    body: dict[str, Any], words: str
) -> None:
    async def handler(request: web.Request) -> web.Response:
        return web.json_response(body)

    async with serving(handler) as url, ApiClient(url) as client:
        with pytest.raises(ApiError, match=words):
            await client.models()


async def test_the_url_may_end_in_v1_and_the_key_is_sent() -> None:
    seen = []

    async def handler(request: web.Request) -> web.Response:
        seen.append((request.path, request.headers.get("Authorization")))
        return web.json_response({"data": [{"id": "m"}]})

    async with serving(handler) as url:
        for address in (url, url + "/", url + "/v1", url + "/v1/"):
            async with ApiClient(address, api_key="k") as client:
                assert await client.models() == ["m"]
    assert seen == [("/v1/models", "Bearer k")] * 4


async def stream_of(*pieces: bytes, keep_alive: bool = True) -> tuple[list[str], str | None, int]:
    """Texts, the error's code and the connections used for two requests in a row."""
    ports = set()

    async def handler(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        ports.add(request.transport.get_extra_info("peername")[1])
        response = web.StreamResponse()
        await response.prepare(request)
        for piece in pieces:
            await response.write(piece)
            await asyncio.sleep(0.01)  # the end of the body comes after the last event
        return response

    texts: list[str] = []
    code = None
    async with serving(handler) as url, ApiClient(url, keep_alive=keep_alive) as client:
        for _ in range(2):
            texts.clear()
            try:
                async for chunks in client.stream("/v1/completions", {}):
                    texts += [choice.content for chunk in chunks for choice in chunk.choices]
            except ApiError as error:
                code = error.code
    return texts, code, len(ports)


async def test_a_finished_stream_leaves_its_connection_for_the_next() -> None:
    event = b'data: {"choices":[{"index":0,"text":"a","finish_reason":null}],"usage":null}\n\n'
    assert await stream_of(event[:20], event[20:] + event, b"data: [DONE]\n\n") == (
        ["a", "a"],
        None,
        1,
    )


async def test_without_keep_alive_every_stream_has_a_connection_of_its_own() -> None:
    _, code, connections = await stream_of(b"data: [DONE]\n\n", keep_alive=False)
    assert (code, connections) == (None, 2)


async def test_output_before_an_error_is_not_lost() -> None:
    event = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'
    error = b'data: {"error":{"message":"died","code":"engine_restarted"}}\n\n'
    texts, code, _ = await stream_of(event + error)
    assert (texts, code) == (["a"], "engine_restarted")


async def test_a_stream_without_its_end_is_truncated() -> None:
    texts, code, _ = await stream_of(b'data: {"choices":[{"text":"a"}]}\n\n')
    assert (texts, code) == (["a"], "truncated")


async def test_an_event_that_is_no_completion_is_a_bad_answer() -> None:
    _, code, _ = await stream_of(b"data: {]\n\n")
    assert code == "bad_answer"


async def test_a_server_that_answers_too_late_is_a_timeout() -> None:
    async def handler(request: web.Request) -> web.Response:
        await asyncio.sleep(0.5)
        return web.Response()

    async with serving(handler) as url, ApiClient(url, timeout_seconds=0.1) as client:
        with pytest.raises(ApiError) as caught:
            await client.models()
    assert caught.value.code == "timeout"


async def test_a_server_that_cannot_tokenize_is_not_an_error() -> None:
    async def handler(request: web.Request) -> web.Response:
        return web.Response(status=404)

    async with serving(handler) as url, ApiClient(url) as client:
        assert await client.tokenize("x", "m") is None
