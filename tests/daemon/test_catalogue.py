"""Several models in one daemon: names, engines of their own, a budget for fewer than all."""

from __future__ import annotations

import asyncio
import os
import random
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from gatewayd.admin.client import AdminError, call
from tests.daemon.conftest import Running

Start = Callable[..., Running]

MODELS = {"a": "embedded:nano", "b": "embedded:nano-draft", "c": "embedded:nano"}


def settings(memory: str, **more: Any) -> dict[str, object]:
    """Three models; each counts as 100 MiB."""
    found: dict[str, object] = {"catalogue.minimum_residency_seconds": 0.2, **more}
    if memory:
        found["catalogue.memory"] = memory
    for name, path in MODELS.items():
        found |= {f"models.{name}.path": path, f"models.{name}.memory": "100MiB"}
    return found


def engines(daemon: Running) -> dict[str, list[int]]:
    """Process ids of the engines of each model that exist now."""
    rows = daemon.readyz()[1]["models"]
    return {
        row["model"]: [one["pid"] for one in row["replicas"] if one["pid"] is not None]
        for row in rows
    }


def num_alive(pids: list[int]) -> int:
    return sum(os.path.exists(f"/proc/{pid}") for pid in pids)


async def test_each_model_has_its_names_its_engines_and_its_failures(
    start_daemon: Start, client: Any, tmp_path: Path
) -> None:
    file = tmp_path / "names.toml"
    file.write_text('[models.a]\npath = "x"\n[models.b]\npath = "x"\nserved_names = ["draft"]\n')
    daemon = start_daemon(
        env={"GATEWAYD_CONFIG": str(file)}, **settings("", **{"models.b.engine.replicas": 2})
    )
    listed = (await client.http.get(f"{daemon.url}/v1/models")).json()["data"]
    assert [(one["id"], one["root"]) for one in listed] == [
        ("a", "a"),
        ("b", "b"),
        ("draft", "b"),
        ("c", "c"),
    ]
    pids = engines(daemon)
    assert {name: len(found) for name, found in pids.items()} == {"a": 1, "b": 2, "c": 1}
    for name in ("a", "draft", "c"):
        answer = await client.complete(daemon, "x", 4, model=name)
        assert answer.is_complete
    unknown = await client.complete(daemon, "x", 4, stream=False, model="d")
    assert (unknown.status, unknown.error["code"]) == (404, "model_not_found")
    assert "served: a, b, draft, c" in unknown.error["message"]
    assert daemon.said("engine 0 of a: ready")
    assert daemon.said("engine 1 of b: ready")
    # The loss of one model's engine is not the others'.
    os.kill(pids["a"][0], signal.SIGKILL)
    for name in ("b", "c"):
        assert (await client.complete(daemon, "x", 4, model=name)).is_complete
    metrics = (await client.http.get(f"{daemon.url}/metrics")).text
    assert metrics.count("# TYPE vllm:num_requests_running gauge") == 1
    assert 'vllm:request_success_total{engine="0",finished_reason="length",model_name="c"} 2' in (
        metrics
    )


async def test_random_traffic_to_three_models_in_memory_for_two_loses_no_request(
    start_daemon: Start, client: Any
) -> None:
    daemon = start_daemon(env={"FAKE_STEP_MS": "2"}, **settings("250MiB"))
    most = 0
    done = asyncio.Event()

    async def sample() -> None:
        nonlocal most
        async with httpx.AsyncClient() as http:
            while not done.is_set():
                rows = (await http.get(f"{daemon.url}/readyz?verbose=1")).json()["models"]
                # Engines that exist, not what the daemon believes about them.
                pids = [one["pid"] for row in rows for one in row["replicas"] if one["pid"]]
                most = max(most, num_alive(pids))
                await asyncio.sleep(0.01)

    sampling = asyncio.create_task(sample())
    choose = random.Random(5)
    for _ in range(12):
        names = choose.choices(list(MODELS), weights=(6, 3, 1), k=6)
        answers = await asyncio.gather(
            *[client.complete(daemon, "x", choose.randint(1, 30), model=name) for name in names]
        )
        assert all(answer.is_complete for answer in answers), [one.error for one in answers]
    done.set()
    await sampling
    assert most == 2
    figures = (await client.http.get(f"{daemon.url}/metrics")).text
    unloads = [
        float(line.rpartition(" ")[2])
        for line in figures.splitlines()
        if line.startswith("gatewayd_model_unloads_total")
    ]
    assert sum(unloads) >= 3
    assert daemon.stop() == 0


async def test_it_is_ready_when_the_models_of_the_start_are_and_stays_so(
    start_daemon: Start, client: Any
) -> None:
    late = {"models.a.preload": False, "models.c.preload": False}
    daemon = start_daemon(env={"FAKE_LOAD_MS": "1500"}, wait=False, **settings("", **late))
    await asyncio.to_thread(daemon.wait_listening)
    status, shown = await asyncio.to_thread(daemon.readyz)
    assert (status, shown["status"]) == (503, "not_ready"), shown
    await asyncio.to_thread(daemon.wait_ready)
    assert (await asyncio.to_thread(daemon.readyz))[0] == 200
    loading = asyncio.create_task(client.complete(daemon, "x", 4, model="c"))
    while not loading.done():
        status, shown = await asyncio.to_thread(daemon.readyz)
        assert (status, shown["status"] in ("ready", "degraded")) == (200, True), shown
        await asyncio.sleep(0.05)
    assert (await loading).is_complete


async def test_a_long_answer_is_finished_before_its_model_is_unloaded(
    start_daemon: Start, client: Any
) -> None:
    daemon = start_daemon(
        env={"FAKE_STEP_MS": "10"},
        **settings("150MiB", **{"catalogue.patience_seconds": 0.3}),
    )
    long = asyncio.create_task(client.complete(daemon, "x", 150, model="a"))
    await asyncio.sleep(0.5)
    other = await client.complete(daemon, "x", 4, model="b")
    assert other.is_complete
    assert long.done(), "the other model was loaded while this one had a request"
    answer = await long
    assert (answer.is_complete, answer.error) == (True, None)
    assert engines(daemon)["a"] == []


async def test_a_model_without_memory_for_it_is_refused_at_the_start(start_daemon: Start) -> None:
    daemon = start_daemon(wait=False, **settings("90MiB"))
    assert daemon.process.wait(60) != 0
    assert "the model a needs 0.10 GiB, and [catalogue] memory is 0.09 GiB" in (
        daemon.log.read_text()
    )


async def test_a_drain_serves_what_waits_for_a_sleeping_model(
    start_daemon: Start, client: Any
) -> None:
    daemon = start_daemon(**settings("150MiB"))
    for name in ("b", "a"):
        assert (await client.complete(daemon, "x", 4, model=name)).is_complete
    waiting = asyncio.create_task(client.complete(daemon, "x", 4, model="b"))
    await asyncio.sleep(0.05)
    daemon.process.send_signal(signal.SIGTERM)
    assert (await asyncio.wait_for(waiting, 30)).is_complete
    assert await asyncio.to_thread(daemon.process.wait, 30) == 0


def admin_socket(tmp_path: Path) -> str:
    return str(tmp_path / "admin.sock")


async def test_models_are_added_and_removed_while_others_serve_and_after_a_restart(
    start_daemon: Start, client: Any, tmp_path: Path
) -> None:
    socket = admin_socket(tmp_path)
    kept = {"admin.socket": socket, "store.path": str(tmp_path / "store")}
    daemon = start_daemon(env={"FAKE_STEP_MS": "5"}, **kept)
    row = {"path": "embedded:nano-draft", "served_names": ["more"], "memory": "100MiB"}
    assert (await client.complete(daemon, "x", 4, stream=False, model="new")).status == 404
    await asyncio.to_thread(call, socket, "PUT", "/admin/models/new", {"table": row})
    for name in ("new", "more", "nano"):
        assert (await client.complete(daemon, "x", 4, model=name)).is_complete
    for wrong, said in [
        ({"path": "/nowhere"}, "/nowhere"),
        ({"path": "embedded:nano", "engine": {"threds": 1}}, "threds"),
        ({"pth": "x"}, "pth"),
        ({"path": "embedded:nano", "served_names": ["more"]}, "two models are named 'more'"),
    ]:
        with pytest.raises(AdminError, match=re.escape(said)):
            await asyncio.to_thread(call, socket, "PUT", "/admin/models/wrong", {"table": wrong})
    with pytest.raises(AdminError, match="there is a model 'new' already"):
        await asyncio.to_thread(call, socket, "PUT", "/admin/models/new", {"table": row})
    # None of the refusals has left anything behind.
    listed = (await client.http.get(f"{daemon.url}/v1/models")).json()["data"]
    assert [one["id"] for one in listed] == ["nano", "new", "more"]
    assert daemon.stop() == 0
    daemon = start_daemon(env={"FAKE_STEP_MS": "5"}, **kept)
    long = asyncio.create_task(client.complete(daemon, "x", 200, model="new"))
    await asyncio.sleep(0.3)
    await asyncio.to_thread(call, socket, "DELETE", "/admin/models/new", {"seconds": 30})
    assert (await long).is_complete, "a running request was cut by the removal"
    assert (await client.complete(daemon, "x", 4, stream=False, model="new")).status == 404
    assert "new" not in engines_of_metrics((await client.http.get(f"{daemon.url}/metrics")).text)
    with pytest.raises(AdminError, match="there is no model 'new' in the catalogue"):
        await asyncio.to_thread(call, socket, "DELETE", "/admin/models/new", {})
    assert daemon.stop() == 0
    daemon = start_daemon(**kept)
    assert (await client.complete(daemon, "x", 4, stream=False, model="new")).status == 404


async def test_a_name_of_the_models_path_is_taken_and_an_added_model_gives_way(
    start_daemon: Start, client: Any, tmp_path: Path
) -> None:
    named = {"model.path": "embedded:nano", "models.nano.path": "embedded:nano-draft"}
    daemon = start_daemon(wait=False, **named)
    assert daemon.process.wait(60) != 0
    said = daemon.log.read_text()
    assert "[model] and [models.nano] both have the name 'nano'" in said
    assert "Traceback" not in said
    socket = admin_socket(tmp_path)
    kept = {"admin.socket": socket, "store.path": str(tmp_path / "store")}
    daemon = start_daemon(**kept)
    row = {"path": "embedded:nano-draft", "served_names": ["more"]}
    await asyncio.to_thread(call, socket, "PUT", "/admin/models/new", {"table": row})
    assert daemon.stop() == 0
    # The name that an operator has given is now one of the configuration's.
    file = tmp_path / "g.toml"
    file.write_text('[model]\nserved_names = ["more"]\n')
    daemon = start_daemon(env={"GATEWAYD_CONFIG": str(file)}, **kept)
    listed = (await client.http.get(f"{daemon.url}/v1/models")).json()["data"]
    assert [(one["id"], one["root"]) for one in listed] == [("nano", "nano"), ("more", "nano")]
    assert "the added model new is not served: [model] and [models.new]" in daemon.log.read_text()


def engines_of_metrics(text: str) -> set[str]:
    """Names of models that have series."""
    return set(re.findall(r'model_name="([^"]+)"', text))


async def test_a_reload_adds_and_removes_the_models_of_the_file(
    start_daemon: Start, client: Any, tmp_path: Path
) -> None:
    file = tmp_path / "models.toml"
    base = '[models.a]\npath = "embedded:nano"\n'
    file.write_text(base + '[models.b]\npath = "embedded:nano-draft"\n')
    daemon = start_daemon(env={"GATEWAYD_CONFIG": str(file)})
    assert (await client.complete(daemon, "x", 4, model="b")).is_complete
    file.write_text(base + '[models.c]\npath = "embedded:nano-draft"\nserved_names = ["d"]\n')
    daemon.process.send_signal(signal.SIGHUP)
    async with asyncio.timeout(30):
        while (await client.complete(daemon, "x", 4, stream=False, model="b")).status != 404:
            await asyncio.sleep(0.1)
    assert (await client.complete(daemon, "x", 4, model="d")).is_complete
    assert (await client.complete(daemon, "x", 4, model="a")).is_complete
    # A file with an error changes nothing.
    file.write_text(base + '[models.e]\npath = "embedded:none"\n')
    daemon.process.send_signal(signal.SIGHUP)
    await asyncio.to_thread(daemon._wait, "configuration not reloaded: no embedded model", 30)
    assert (await client.complete(daemon, "x", 4, model="d")).is_complete


async def test_routes_keep_their_models_and_start_without_those_removed_before(
    start_daemon: Start, client: Any, tmp_path: Path
) -> None:
    socket, file = admin_socket(tmp_path), tmp_path / "models.toml"
    kept = {"admin.socket": socket, "store.path": str(tmp_path / "store")}
    models = "".join(f'[models.{name}]\npath = "embedded:nano-draft"\n' for name in "abc")
    file.write_text(models)
    daemon = start_daemon(env={"GATEWAYD_CONFIG": str(file)}, **kept)
    await asyncio.to_thread(call, socket, "DELETE", "/admin/models/c", {})
    assert daemon.stop() == 0
    file.write_text(models + '[routes.r]\ntargets = ["c", "a"]\n')
    daemon = start_daemon(env={"GATEWAYD_CONFIG": str(file)}, **kept)
    assert daemon.said("the route r lacks c, not served now")
    answer = await client.http.post(
        f"{daemon.url}/v1/completions", json={"model": "r", "prompt": "x", "max_tokens": 2}
    )
    assert (answer.status_code, answer.headers["x-gatewayd-target"]) == (200, "a")
    with pytest.raises(AdminError, match="the route r uses it: remove it from"):
        await asyncio.to_thread(call, socket, "DELETE", "/admin/models/a", {})
    await asyncio.to_thread(call, socket, "DELETE", "/admin/models/b", {})
    file.write_text(file.read_text() + '[upstreams.u]\nurl = "http://u/v1"\nmodels = { x = "x" }\n')
    for _ in range(2):  # compared with what runs, not with what was read last
        daemon.process.send_signal(signal.SIGHUP)
        seen = daemon.log.read_text().count("restart required: [upstreams] has changed")
        async with asyncio.timeout(30):
            while daemon.log.read_text().count("[upstreams] has changed") == seen:
                await asyncio.sleep(0.05)
