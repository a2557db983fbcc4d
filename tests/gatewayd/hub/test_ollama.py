"""Ollama's ``pull``, ``list``, ``show``, ``ps`` and ``delete``, by its own client over a port."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import ollama
import pytest

from gatewayd.hub.local_models import LocalModels
from gatewayd.hub.pull import pull
from gatewayd.hub.reference import parse_reference
from gatewayd.hub.store import stored_path
from gatewayd.text.text_model import TextModel
from gatewayd_proto_ollama.config import OllamaConfig
from gatewayd_proto_ollama.strategy import Ollama
from tests.gatewayd.fake_fleet import FakeFleet
from tests.gatewayd.gateway import running, until
from tests.gatewayd.hub.fake_hub import FakeHub
from tests.gatewayd.hub.models import content, gguf, single
from tests.gatewayd.store_fixtures import copy_of
from tests.gatewayd.tenants.tenant_gateway import bearer, town

NAME = "org/small"
OLLAMA = [("ollama", Ollama(OllamaConfig()))]


@pytest.fixture(autouse=True)
def _for_processes_too(hub: FakeHub, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", hub.url)


@pytest.fixture
def models() -> LocalModels:
    return LocalModels()


@asynccontextmanager
async def served(text: TextModel, models: LocalModels) -> AsyncIterator[ollama.AsyncClient]:
    async with running(
        text, FakeFleet(), protocols=OLLAMA, only_local_hosts=True, local_models=models
    ) as gateway:
        async with ollama.AsyncClient(host=gateway.url, timeout=60) as client:
            yield client
        await models.close()


async def statuses(client: ollama.AsyncClient, name: str = NAME) -> list[ollama.ProgressResponse]:
    return [one async for one in await client.pull(name, stream=True)]


def is_pulling(models: LocalModels) -> bool:
    return bool(models._pulls.repos)


def partial(store: Path) -> list[Path]:
    return list(store.rglob("*.incomplete"))


async def test_a_model_is_pulled_listed_shown_and_deleted(
    hub: FakeHub, text: TextModel, models: LocalModels
) -> None:
    repo = hub.repos[NAME] = single()
    async with served(text, models) as client:
        assert [row.model for row in (await client.list()).models] == [
            *("nano:latest", "gpt-test:latest"),
        ]
        found = await statuses(client)
        words = [one.status for one in found]
        assert words[0] == "pulling manifest"
        assert words[-3:] == ["verifying sha256 digest", "writing manifest", "success"]
        weights = [one for one in found if one.total == len(repo.files["model.safetensors"])]
        assert weights[-1].completed == weights[-1].total
        digest = weights[-1].digest
        assert digest is not None
        assert digest.startswith("sha256:")
        assert weights[-1].status == f"pulling {digest[7:19]}"
        # Once more, in another form: nothing is fetched.
        hub.requests.clear()
        assert (await client.pull(f"hf.co/{NAME}:latest")).status == "success"
        assert hub.fetched() == []
        (row,) = [row for row in (await client.list()).models if row.model == f"{NAME}:latest"]
        assert row.details is not None
        assert (row.details.format, row.details.family) == ("safetensors", "llama")
        assert row.size is not None
        assert row.size > 20_000
        shown = await client.show(NAME)
        assert shown.details is not None
        assert shown.details.family == "llama"
        assert [row.model for row in (await client.ps()).models] == [
            *("nano:latest", "gpt-test:latest"),
        ]
        assert (await client.delete(NAME)).status == "success"
        for gone in (client.delete(NAME), client.show(NAME)):
            with pytest.raises(ollama.ResponseError) as caught:
                await gone
            assert caught.value.status_code == 404


async def test_one_quantization_is_pulled_and_deleted(
    hub: FakeHub, text: TextModel, models: LocalModels
) -> None:
    hub.repos[NAME] = gguf()
    async with served(text, models) as client:
        with pytest.raises(ollama.ResponseError, match="Q4_K_M, Q8_0"):
            await client.pull(NAME)
        await client.pull(f"{NAME}:Q8_0")
        (row,) = [row for row in (await client.list()).models if "org" in (row.model or "")]
        assert row.model == f"{NAME}:Q8_0"
        assert row.details is not None
        assert (row.details.format, row.details.quantization_level) == ("gguf", "Q8_0")
        for name in (f"hf.co/{NAME}:Q8_0", f"https://huggingface.co/{NAME}:q8_0", f"{NAME}:q8_0"):
            shown = await client.show(name)
            assert shown.details is not None
            assert shown.details.quantization_level == "Q8_0"
        await client.delete(f"{NAME}:Q8_0")


async def test_what_fails_is_said_with_its_status_or_as_the_last_line(
    hub: FakeHub, text: TextModel, models: LocalModels
) -> None:
    repo = hub.repos[NAME] = single()
    repo.served["model.safetensors"] = content("other")
    async with served(text, models) as client:
        for name, status in [("org/none", 404), ("llama3.2", 400), (NAME, 502)]:
            with pytest.raises(ollama.ResponseError) as caught:
                await client.pull(name)
            assert caught.value.status_code == status
        with pytest.raises(ollama.ResponseError, match=r"model\.safetensors"):
            await statuses(client)
        assert not is_pulling(models)


async def test_pulls_of_one_model_are_one(
    hub: FakeHub, text: TextModel, models: LocalModels
) -> None:
    hub.repos[NAME] = single()
    hub.open.clear()
    async with served(text, models) as client:
        both = [asyncio.create_task(statuses(client)) for _ in range(2)]
        await until(lambda: "model.safetensors" in hub.fetched())
        # What is being pulled is not deleted.
        with pytest.raises(ollama.ResponseError, match="is being pulled") as caught:
            await client.delete(NAME)
        assert caught.value.status_code == 409
        third = await client.pull(NAME, stream=True)
        assert (await anext(third)).status == "pulling manifest"
        hub.open.set()
        for found in await asyncio.gather(*both):
            assert found[-1].status == "success"
        assert [one.status async for one in third][-1] == "success"
    assert hub.fetched().count("model.safetensors") == 1


async def test_the_last_client_that_disconnects_ends_a_pull(
    hub: FakeHub, store: Path, text: TextModel, models: LocalModels
) -> None:
    hub.repos[NAME] = single()
    hub.open.clear()
    async with served(text, models) as client:
        tasks = [asyncio.create_task(statuses(client)), asyncio.create_task(client.pull(NAME))]
        await until(lambda: partial(store))
        tasks[0].cancel()
        await asyncio.sleep(0.3)
        assert is_pulling(models)
        tasks[1].cancel()
        await until(lambda: not is_pulling(models))
        assert partial(store) == []
        hub.open.set()
        assert (await statuses(client))[-1].status == "success"


async def test_a_daemon_that_stops_ends_its_pulls(
    hub: FakeHub, store: Path, text: TextModel, models: LocalModels
) -> None:
    hub.repos[NAME] = single()
    hub.open.clear()
    async with served(text, models) as client:
        pulling = asyncio.create_task(statuses(client))
        await until(lambda: partial(store))
        await models.close()
        with pytest.raises(ollama.ResponseError, match="stopped"):
            await pulling
        assert partial(store) == []
        with pytest.raises(ollama.ResponseError, match="stopping"):
            await client.pull(NAME)


async def test_what_is_served_is_not_deleted(hub: FakeHub, text: TextModel) -> None:
    hub.repos[NAME] = single()
    pull(parse_reference(NAME), report=lambda _: None)
    async with served(text, LocalModels([stored_path(f"hf:{NAME}")])) as client:
        with pytest.raises(ollama.ResponseError, match="is being served") as caught:
            await client.delete(NAME)
        assert caught.value.status_code == 409


async def test_the_store_is_the_operators(
    hub: FakeHub, text: TextModel, fresh_store: Path, tmp_path: Path
) -> None:
    hub.repos[NAME] = single()
    pull(parse_reference(NAME), report=lambda _: None)
    async with town(
        text,
        copy_of(fresh_store, tmp_path / "tenants"),
        lambda _: asyncio.sleep(0),
        protocols=OLLAMA,
        api_key="the operator's key",
    ) as here:
        await here.tenant("a")
        key = await here.key("a", scopes=["infer", "files", "batches", "models:read"])
        async with ollama.AsyncClient(host=here.gateway.url, headers=bearer(key)) as client:
            for attempt in (client.pull(NAME), client.delete(NAME)):
                with pytest.raises(ollama.ResponseError, match="operator only") as caught:
                    await attempt
                assert caught.value.status_code == 403
            assert not [row for row in (await client.list()).models if "org" in (row.model or "")]
        headers = bearer("the operator's key")
        async with ollama.AsyncClient(host=here.gateway.url, headers=headers) as client:
            assert (await client.list()).models[-1].model == f"{NAME}:latest"
            assert (await client.delete(NAME)).status == "success"


async def test_without_a_key_a_public_address_changes_and_shows_no_models(
    hub: FakeHub, text: TextModel
) -> None:
    hub.repos[NAME] = single()
    pull(parse_reference(NAME), report=lambda _: None)
    hub.requests.clear()
    async with (
        running(text, FakeFleet(), protocols=OLLAMA) as gateway,
        ollama.AsyncClient(host=gateway.url) as client,
    ):
        for attempt in (client.pull(NAME), client.delete(NAME)):
            with pytest.raises(ollama.ResponseError, match=r"set server\.api_key") as caught:
                await attempt
            assert caught.value.status_code == 403
        assert not [row for row in (await client.list()).models if "org" in (row.model or "")]
        with pytest.raises(ollama.ResponseError) as caught:
            await client.show(NAME)
        assert caught.value.status_code == 404
    assert hub.requests == []
