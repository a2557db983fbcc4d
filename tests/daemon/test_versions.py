"""Versions of a model: split by key, promoted and rolled back under load, copied, on record."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gatewayd.admin.client import AdminError, call
from gatewayd.cli import app
from gatewayd_engine.model import embedded
from tests.daemon.conftest import Running

Start = Callable[..., Running]
NEW = {"path": "embedded:nano-draft"}


class Town:
    """A daemon with its admin socket, and requests to it."""

    def __init__(self, daemon: Running, client: Any, socket: str) -> None:
        self.daemon, self.client, self.socket = daemon, client, socket

    async def admin(self, method: str, path: str = "", body: Any = None) -> Any:
        route = f"/admin/versions{path}"
        return await asyncio.to_thread(call, self.socket, method, route, body, 30)

    async def row(self) -> Any:
        (row,) = (await self.admin("GET"))["deployments"]
        return row

    async def deployed(self, model: str = "nano", **terms: Any) -> None:
        await self.admin("PUT", f"/{model}", {"table": NEW, **terms})
        async with asyncio.timeout(60):
            while (await self.row())["version"]["state"] != "ready":
                await asyncio.sleep(0.05)

    async def ask(self, prompt: str = "x", model: str = "nano", **fields: Any) -> tuple[str, Any]:
        """Return the version that answered, and the answer."""
        body = {"model": model, "prompt": prompt, "max_tokens": 4, **fields}
        found = await self.client.http.post(f"{self.daemon.url}/v1/completions", json=body)
        assert found.status_code == 200, found.text
        assert found.json()["model"] == model
        return found.headers.get("x-gatewayd-target", ""), found.json()


@pytest.fixture
def town(start_daemon: Start, client: Any, tmp_path: Path) -> Callable[..., Town]:
    socket = str(tmp_path / "admin.sock")

    def start(file: Path | None = None, **settings: Any) -> Town:
        kept = {"admin.socket": socket, "store.path": str(tmp_path / "store"), **settings}
        env = {"FAKE_STEP_MS": "2"} | ({} if file is None else {"GATEWAYD_CONFIG": str(file)})
        return Town(start_daemon(env=env, **kept), client, socket)

    return start


async def test_a_version_is_deployed_promoted_and_served_after_a_restart(
    town: Callable[..., Town], client: Any
) -> None:
    here = town()
    assert (await here.ask())[0] == ""
    with pytest.raises(AdminError, match="no version of 'nano' is on trial: give the path of one"):
        await here.admin("PUT", "/nano", {"weight": 0.5})
    with pytest.raises(AdminError, match="there is no local model 'nanu'"):
        await here.admin("PUT", "/nanu", {"table": NEW})
    with pytest.raises(AdminError, match="weight is 2; it must be from 0 to 1"):
        await here.admin("PUT", "/nano", {"table": NEW, "weight": 2})
    await here.deployed(weight=0.5)
    found = Counter([(await here.ask())[0] for _ in range(40)])
    assert set(found) == {"nano", "nano-v2"}
    # A version has no name of its own.
    listed = (await client.http.get(f"{here.daemon.url}/v1/models")).json()["data"]
    assert [one["id"] for one in listed] == ["nano"]
    row = await here.row()
    assert [row[part]["requests"] for part in ("stable", "version")] == [
        found["nano"],
        found["nano-v2"],
    ]
    await here.admin("PUT", "/nano", {"weight": 1.0})
    assert {(await here.ask())[0] for _ in range(10)} == {"nano-v2"}
    # Neither a restart nor a reload ends the deployment.
    assert here.daemon.stop() == 0
    here = town()
    async with asyncio.timeout(60):
        while (await here.admin("GET"))["deployments"] == []:
            await asyncio.sleep(0.05)
        while (await here.row())["version"]["state"] != "ready":
            await asyncio.sleep(0.05)
    assert {(await here.ask())[0] for _ in range(10)} == {"nano-v2"}
    await here.admin("POST", "/nano/promote")
    assert (await here.admin("GET"))["deployments"] == []
    assert (await here.ask())[0] == ""
    models = await asyncio.to_thread(call, here.socket, "GET", "/admin/models")
    assert [one["name"] for one in models["models"]] == ["nano"]
    assert here.daemon.stop() == 0
    here = town()
    assert (await here.ask())[0] == ""
    shown = await asyncio.to_thread(call, here.socket, "GET", "/admin/models")
    assert [one["name"] for one in shown["models"]] == ["nano"]
    await here.deployed(weight=0.0)
    assert (await here.row())["stable"]["path"] == "embedded:nano-draft"
    assert {(await here.ask())[0] for _ in range(10)} == {"nano"}
    # One after another without a restart: their metrics are told apart.
    await here.admin("POST", "/nano/promote")
    await here.deployed(weight=0.5)
    assert (await here.row())["version"]["name"] == "nano-v3"
    page = (await client.http.get(f"{here.daemon.url}/metrics")).text
    series = [line.rpartition(" ")[0] for line in page.splitlines() if not line.startswith("#")]
    assert [one for one in set(series) if series.count(one) > 1] == []
    assert any('model_name="nano-v3"' in one for one in series)


async def test_no_request_is_lost_and_no_conversation_goes_back_and_forth(
    town: Callable[..., Town],
) -> None:
    """Traffic of 24 conversations, streamed and whole, through a whole life of two versions."""
    here = town()
    seen: dict[str, list[tuple[str, str]]] = {f"c{number}": [] for number in range(24)}
    phase, is_over, failures = ["before"], asyncio.Event(), list[str]()

    async def talk(name: str) -> None:
        turn = 0
        while not is_over.is_set():
            turn += 1
            began = phase[0]
            if turn % 3:
                body: dict[str, Any] = {"prompt_cache_key": name, "max_tokens": 1 + turn % 7}
                version, answer = await here.ask(f"{name} {turn}", **body)
                is_whole = answer["choices"][0]["finish_reason"] == "length"
            else:
                result = await here.client.complete(
                    here.daemon, name, 20, model="nano", prompt_cache_key=name
                )
                version, is_whole = "", result.is_complete
            if not is_whole:
                failures.append(f"{name} {turn} {phase[0]}")
            if version and began == phase[0]:
                seen[name].append((began, version))

    async def during(name: str, seconds: float = 1.0) -> None:
        await asyncio.sleep(0.5)  # those that began before have ended
        phase[0] = name
        await asyncio.sleep(seconds)
        phase[0] = "between"

    talks = [asyncio.create_task(talk(name)) for name in seen]
    await during("before")
    await here.deployed(weight=0.3, by="conversation")
    await during("third")
    await here.admin("PUT", "/nano", {"weight": 0.7})
    await during("most")
    await here.admin("DELETE", "/nano")
    await during("back")
    await here.deployed(weight=0.5, by="conversation")
    await during("half")
    await here.admin("POST", "/nano/promote")
    await during("promoted")
    is_over.set()
    await asyncio.gather(*talks)
    assert failures == []
    assert here.daemon.stop() == 0
    both = set[str]()
    for name, turns in seen.items():
        at = {each: {version for when, version in turns if when == each} for each, _ in turns}
        # One version in each phase, and a greater weight moves none back.
        assert all(len(at[each]) == 1 for each in ("third", "most", "half") if each in at), name
        moves = [next(iter(at.get(each, {""}))) for each in ("third", "most")]
        assert moves != ["nano-v2", "nano"], name
        both |= set(moves)
    assert both >= {"nano", "nano-v2"}


async def test_answers_of_copies_are_compared_and_never_sent(town: Callable[..., Town]) -> None:
    here = town()
    await here.deployed(weight=0.0, shadow=1.0)
    for number in range(10):
        assert (await here.ask(f"copy {number}", temperature=0))[0] == "nano"
    await here.ask("drawn", temperature=1.0)
    await here.client.complete(here.daemon, "streamed", 8, model="nano", temperature=0)
    async with asyncio.timeout(30):
        while (shadow := (await here.row())["shadow"])["compared"] + shadow["sampled"] < 12:
            await asyncio.sleep(0.05)
    assert (shadow["compared"], shadow["sampled"], shadow["failed"]) == (11, 1, 0)
    # Engines of this test answer by the prompt alone.
    assert (shadow["equal"], shadow["common"]) == (11, 1.0)
    assert (await here.row())["version"]["requests"] == 0


async def test_a_version_that_misses_its_slos_is_rolled_back(town: Callable[..., Town]) -> None:
    here = town(**{"slo.standard.ttft_ms": 0.001})
    await here.deployed(weight=1.0, least_goodput=0.9, least_requests=20)
    for _ in range(25):
        await here.ask()
    async with asyncio.timeout(30):
        while (found := await here.admin("GET"))["deployments"]:
            await asyncio.sleep(0.05)
    assert "nano-v2: 0 of" in found["rolled_back"]["nano"]
    assert (await here.ask())[0] == ""
    assert here.daemon.said("nano-v2 of nano is rolled back: 0 of")
    # Neither does it come back by a restart.
    assert here.daemon.stop() == 0
    here = town(**{"slo.standard.ttft_ms": 0.001})
    assert (await here.admin("GET"))["deployments"] == []


async def test_models_of_versions_are_not_removed(town: Callable[..., Town]) -> None:
    here = town()
    await here.deployed()
    with pytest.raises(AdminError, match="a version is on trial: promote it or roll it back"):
        await asyncio.to_thread(call, here.socket, "DELETE", "/admin/models/nano-v2", {})
    with pytest.raises(AdminError, match="nano-v2 is on trial: promote it or roll it back first"):
        await here.admin("PUT", "/nano", {"table": NEW})


async def test_a_table_keeps_its_settings_and_the_old_checkpoint_may_go(
    town: Callable[..., Town], client: Any, tmp_path: Path
) -> None:
    old, file = tmp_path / "old", tmp_path / "g.toml"
    shutil.copytree(embedded.folder("nano-draft"), old)
    base = '[models.b]\npath = "embedded:nano"\n'
    mine = f'[models.a]\npath = "{old}"\nmax_model_len = 256\nserved_names = ["more"]\n'
    file.write_text(mine + base)
    here = town(file=file)

    async def listed(name: str) -> Any:
        models = (await client.http.get(f"{here.daemon.url}/v1/models")).json()["data"]
        return next(one for one in models if one["id"] == name)

    with pytest.raises(AdminError, match="served_names: a version has its model's names"):
        await here.admin("PUT", "/a", {"table": {**NEW, "served_names": ["x"]}})
    with pytest.raises(AdminError, match="threds"):
        await here.admin("PUT", "/a", {"table": {**NEW, "engine": {"threds": 1}}})
    assert (await here.admin("GET"))["deployments"] == []
    await here.deployed("a", weight=1.0)
    assert (await here.ask(model="more"))[0] == "a-v2"
    # A reload keeps both, even where the file has lost the model's table.
    file.write_text(base)
    here.daemon.process.send_signal(signal.SIGHUP)
    await asyncio.to_thread(here.daemon._wait, "the model a stays", 30)
    assert (await here.ask(model="a"))[0] == "a-v2"
    file.write_text(mine + base)
    here.daemon.process.send_signal(signal.SIGHUP)
    async with asyncio.timeout(30):
        while here.daemon.log.read_text().count("log level set") < 2:
            await asyncio.sleep(0.05)
    await here.admin("PUT", "/a", {"weight": 0.0})
    long = asyncio.create_task(client.complete(here.daemon, "x", 200, model="a"))
    await asyncio.sleep(0.5)
    await here.admin("POST", "/a/promote")
    assert (await listed("more"))["root"] == "a"
    # The daemon ends as well, before the old version has: its answer is still whole.
    assert here.daemon.stop() == 0
    assert (await long).is_complete
    shutil.rmtree(old)
    here = town(file=file)
    assert (await listed("more"))["root"] == "a"
    assert (await here.ask(model="more"))[0] == ""


def test_commands_deploy_change_list_and_end_versions(town: Callable[..., Town]) -> None:
    here = town()

    def run(*arguments: str) -> tuple[int, str]:
        done = CliRunner().invoke(app, ["model", *arguments, "--socket", here.socket])
        return done.exit_code, done.output

    assert run("versions") == (0, "no version is on trial\n")
    for wrong, said in [
        (("deploy", "nano"), "give the path of one"),
        (("deploy", "nano", "--set", "dtype=float32"), "write NAME=PATH"),
        (("deploy", "nano=embedded:nano-draft", "--weight", "200%"), "more than all requests"),
        (("deploy", "nano=embedded:nano-draft", "--most-errors", "few"), "is no share"),
        (("promote", "nano"), "no version of 'nano' is on trial"),
    ]:
        code, output = run(*wrong)
        assert code != 0
        assert said in " ".join(output.replace("│", " ").split()), wrong
    code, output = run("deploy", "nano=embedded:nano-draft", "--weight", "25%", "--shadow", "0.5")
    assert (code, output.startswith("nano-v2 is deployed")) == (0, True)
    assert run("deploy", "nano", "--most-errors", "off", "--by", "tenant")[0] == 0
    (row,) = json.loads(run("versions", "--json")[1])["deployments"]
    assert (row["by"], row["most_errors"], row["version"]["share"]) == ("tenant", None, 0.25)
    shown = run("versions")[1]
    assert "nano-v2" in shown
    assert "nano: of 0 copies 0 were answered alike" in shown
    assert run("rollback", "nano") == (0, "nano-v2 is rolled back\n")
    assert run("versions") == (0, "no version is on trial\n")
