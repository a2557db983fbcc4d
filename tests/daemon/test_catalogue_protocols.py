"""Other APIs over several models: what their clients see of models that sleep, and load."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ollama

from tests.daemon.conftest import Running

Start = Callable[..., Running]

SETTINGS: dict[str, object] = {
    "catalogue.memory": "150MiB",
    "catalogue.minimum_residency_seconds": 0.1,
    "models.a.path": "embedded:nano",
    "models.a.preload": False,
    "models.a.memory": "100MiB",
    "models.b.path": "embedded:nano-draft",
    "models.b.memory": "100MiB",
}


async def loaded(client: ollama.AsyncClient) -> list[str | None]:
    return [one.model for one in (await client.ps()).models]


async def test_ollamas_client_loads_models_that_sleep(
    start_daemon: Start, client: Any, tmp_path: Path
) -> None:
    file = tmp_path / "models.toml"
    models = '[models.a]\npath = "x"\n[models.b]\npath = "x"\n'
    file.write_text('[protocol]\nstrategies = ["ollama", "tgi"]\n' + models)
    daemon = start_daemon(env={"GATEWAYD_CONFIG": str(file)}, **SETTINGS)
    async with ollama.AsyncClient(host=daemon.url, timeout=60) as llama:
        await follow(daemon, llama, client)


async def follow(daemon: Running, llama: ollama.AsyncClient, client: Any) -> None:
    # The first one sleeps, and was never loaded: listed and shown, and not loaded by that.
    tags = {one.model: one for one in (await llama.list()).models}
    assert list(tags) == ["a:latest", "b:latest"]
    assert (tags["a:latest"].size, bool(tags["b:latest"].size)) == (0, True)
    shown = await llama.show("a")
    assert shown.template
    assert await loaded(llama) == ["b:latest"]
    info = await client.http.get(f"{daemon.url}/info")
    assert (info.status_code, "a was never loaded" in info.text) == (503, True), info.text
    # As `ollama run` does before the first prompt; there is memory for one.
    answer = await llama.generate("a", "")
    assert (answer.done, answer.done_reason) == (True, "load")
    assert await loaded(llama) == ["a:latest"]
    assert (await llama.show("a")).modelinfo
    info = await client.http.get(f"{daemon.url}/info")
    assert (info.status_code, info.json()["model_id"]) == (200, "a")
    # Also one that was loaded before: its size stays known, and it is loaded when it says so.
    for name, other in (("b", "a"), ("a", "b"), ("b", "a")):
        answer = await asyncio.wait_for(llama.generate(name, ""), 60)
        assert answer.done_reason == "load"
        assert await loaded(llama) == [f"{name}:latest"]
        assert (await llama.show(other)).modelinfo
