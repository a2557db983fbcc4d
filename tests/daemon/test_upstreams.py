"""Two daemons, one the other's upstream: streams, cancellation and explanations across both."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, NamedTuple

import httpx
import openai
import pytest

from gatewayd.admin.client import call
from tests.daemon.conftest import Running, nano_daemon

CHAT: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Tell me a story."}],
    "temperature": 0,
}


class Daemons(NamedTuple):
    """A daemon with the embedded model, and one in front of it that serves it as ``far``."""

    behind: Running
    front: Running
    behind_socket: str
    front_socket: str


@pytest.fixture(scope="module")
def daemons(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemons]:
    folders = [tmp_path_factory.mktemp(name) for name in ("behind", "front")]
    sockets = [str(folder / "admin.sock") for folder in folders]

    def env(at: int) -> dict[str, str]:
        return {"GATEWAYD_ADMIN__SOCKET": sockets[at], "XDG_STATE_HOME": str(folders[at])}

    with nano_daemon(folders[0], **env(0), GATEWAYD_SERVER__API_KEY="the-key-behind") as behind:
        config = folders[1] / "gatewayd.toml"
        (folders[1] / "behind").write_text("the-key-behind")
        config.write_text(
            f'[upstreams.behind]\nurl = "{behind.url}/v1"\napi_key = "credential:behind"\n'
            'models = { far = "nano" }\nsettings = { continuous_usage = true }\n'
        )
        more = {"GATEWAYD_CONFIG": str(config), "CREDENTIALS_DIRECTORY": str(folders[1])}
        with nano_daemon(folders[1], **env(1), **more) as front:
            yield Daemons(behind, front, *sockets)
            assert "the-key-behind" not in front.log.read_text()


async def live(socket: str) -> list[Any]:
    snapshot = await asyncio.to_thread(call, socket, "GET", "/admin/snapshot")
    return [*snapshot["running"], *snapshot["waiting"]]


async def test_both_give_the_same_answers(daemons: Daemons) -> None:
    async with (
        openai.AsyncOpenAI(base_url=f"{daemons.behind.url}/v1", api_key="the-key-behind") as near,
        openai.AsyncOpenAI(base_url=f"{daemons.front.url}/v1", api_key="none") as far,
    ):
        fields = {**CHAT, "max_tokens": 24, "logprobs": True, "top_logprobs": 2, "n": 2}
        direct = await near.chat.completions.create(model="nano", **fields)
        relayed = await far.chat.completions.create(model="far", **fields)
        for one, other in zip(direct.choices, relayed.choices, strict=True):
            assert other.message.content == one.message.content
            assert other.finish_reason == one.finish_reason
            tokens = [[token.token for token in c.logprobs.content] for c in (one, other)]
            assert tokens[0] == tokens[1]
        assert relayed.usage is not None
        assert direct.usage is not None
        assert relayed.usage.completion_tokens == direct.usage.completion_tokens
        assert relayed.usage.prompt_tokens == direct.usage.prompt_tokens
        streamed = await far.chat.completions.create(
            model="far", stream=True, **{**CHAT, "max_tokens": 24}
        )
        text = "".join([chunk.choices[0].delta.content or "" async for chunk in streamed])
        assert text == relayed.choices[0].message.content
        names = [model.id async for model in far.models.list()]
        assert names == ["nano", "far"]


async def test_both_give_the_same_embeddings(daemons: Daemons) -> None:
    async with (
        openai.AsyncOpenAI(base_url=f"{daemons.behind.url}/v1", api_key="the-key-behind") as near,
        openai.AsyncOpenAI(base_url=f"{daemons.front.url}/v1", api_key="none") as far,
    ):
        for fields in ({}, {"dimensions": 16, "encoding_format": "float"}):
            texts: dict[str, Any] = {"input": ["a dog", "a ship at sea", "é"], **fields}
            direct = await near.embeddings.create(model="nano", **texts)
            answer = await far.embeddings.with_raw_response.create(model="far", **texts)
            relayed = answer.parse()
            assert [one.embedding for one in relayed.data] == [one.embedding for one in direct.data]
            assert (relayed.model, relayed.usage) == ("far", direct.usage)
    ours = answer.headers["x-request-id"]
    front, behind = [
        await asyncio.to_thread(call, socket, "GET", f"/admin/requests/{ours}")
        for socket in (daemons.front_socket, daemons.behind_socket)
    ]
    assert (front["endpoint"], front["outcome"]) == ("/v1/embeddings", "stop")
    assert {"upstream", "relaying"} <= front["causes"].keys()
    assert "prefill" in behind["causes"]
    assert front["prompt_tokens"] == relayed.usage.prompt_tokens


async def test_a_request_is_explained_by_both_under_one_id(daemons: Daemons) -> None:
    async with httpx.AsyncClient(base_url=daemons.front.url, timeout=60) as http:
        answer = await http.post(
            "/v1/chat/completions", json={**CHAT, "model": "far", "max_tokens": 16}
        )
    assert answer.status_code == 200
    ours = answer.headers["x-request-id"]
    front, behind = [
        await asyncio.to_thread(call, socket, "GET", f"/admin/requests/{ours}")
        for socket in (daemons.front_socket, daemons.behind_socket)
    ]
    here, there = front["causes"], behind["causes"]
    assert {"upstream", "relaying"} <= here.keys()
    assert {"prefill", "decode"} <= there.keys()
    # What the gateway waited for is what the other daemon did, and the way there and back.
    assert here["upstream"] + here["relaying"] > there["prefill"] + there["decode"] * 0.9
    assert front["completion_tokens"] == behind["completion_tokens"] == 16
    assert front["prompt_tokens"] == behind["prompt_tokens"]


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_client_that_leaves_ends_the_request_of_both(
    daemons: Daemons, streamed: bool
) -> None:
    body = {**CHAT, "model": "far", "max_tokens": 1500, "ignore_eos": True, "stream": streamed}
    async with httpx.AsyncClient(base_url=daemons.front.url, timeout=60) as http:
        asking = asyncio.create_task(http.post("/v1/chat/completions", json=body))
        async with asyncio.timeout(30):
            while not await live(daemons.behind_socket):
                await asyncio.sleep(0.02)
            asking.cancel()
            while await live(daemons.behind_socket):
                await asyncio.sleep(0.02)
