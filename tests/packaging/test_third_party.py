"""Strangers' plugins, in an environment of their own, work like ours."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
import tomllib
from pathlib import Path
from typing import Any

import httpx
import pytest

from gatewayd.cli.authoring.kit import conformance_of
from gatewayd.plugins.imports import imports_outside_contract
from gatewayd_hooks.strategy import Kind
from tests.nested_pytest import QUICKLY

ROOT = Path(__file__).parents[2]
ENTRY_POINTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
PLUGINS = {
    plugin: (project["name"], module)
    for file in sorted((ROOT / "tests" / "third_party").glob("*/pyproject.toml"))
    for project in [tomllib.loads(file.read_text())["project"]]
    for plugin, module in project["entry-points"]["gatewayd"].items()
}
OURS = ["gatewayd", "gatewayd_engine", "gatewayd_hooks", "gatewayd_sched_fcfs"]
THEIRS = [module for _, module in PLUGINS.values()]
WHERE = f"""
import importlib, json
names = {[*OURS, *THEIRS, "pluggy"]}
print(json.dumps({{name: importlib.import_module(name).__file__ for name in names}}))
"""
ENABLED = {"scheduler": "fairshare", "eviction": "clock", "drafter": "sam", "protocol": "llamacpp"}


def enabled() -> set[str]:
    return {f"{kind}.{name}" for kind, name in ENABLED.items()}


def test_there_is_one_for_each_of_five_kinds_and_a_second_scheduler() -> None:
    assert set(PLUGINS) == {"scheduler.lottery", "console.crowd", *enabled()}


def test_every_package_comes_from_where_it_was_installed(place: Any) -> None:
    files = {name: Path(file) for name, file in place.ask(WHERE).items()}
    theirs = {name for name, file in files.items() if file.is_relative_to(place.site)}
    here = {name for name, file in files.items() if file.is_relative_to(ROOT)} - {"pluggy"}
    if place.is_editable:
        assert (theirs, here) == (set(THEIRS), set(OURS))
    else:
        assert (theirs, here) == ({*OURS, *THEIRS}, set())
    assert not files["pluggy"].is_relative_to(place.folder)  # the rest is borrowed


def test_the_units_are_found_wherever_gatewayd_was_installed(place: Any, tmp_path: Path) -> None:
    said = place.run("-m", "gatewayd", "install", "--root", tmp_path / "root", "--no-gpu")
    assert said.count("write ") == 5
    text = (tmp_path / "root/etc/systemd/system/gatewayd.service").read_text()
    assert f"ExecStart={place.folder}/bin/gatewayd serve " in text


def test_they_stand_beside_the_built_ins_and_are_well(place: Any) -> None:
    command = [place.folder / "bin" / "gatewayd", "plugin"]
    rows = json.loads(place.run(*command, "list", "--json", env=environment()))
    listed = [f"{row['kind']}.{row['name']}" for row in rows]
    assert sorted(listed) == sorted([*ENTRY_POINTS["gatewayd"], *PLUGINS])
    report = json.loads(place.run(*command, "doctor", *PLUGINS, "--json", env=environment()))
    found = {row["plugin"]: row for row in report["plugins"]}
    assert found.keys() == PLUGINS.keys()
    for plugin, (distribution, _) in PLUGINS.items():
        assert found[plugin]["distribution"] == distribution
        assert (found[plugin]["state"], found[plugin]["problems"]) == ("ok", [])
    chosen = {row["plugin"] for row in report["plugins"] if row["is_enabled"]}
    assert chosen == {"console.crowd", *enabled()}


def test_their_own_tests_pass_with_the_conformance_kit(place: Any) -> None:
    options = ["-m", "pytest", "-v", "-p", "no:cacheprovider", "--import-mode=importlib"]
    folders = sorted(place.projects.glob("*/tests"))
    env = {**os.environ, **QUICKLY}
    report = place.run(*options, "--rootdir", ".", *folders, cwd=place.projects, env=env)
    assert " skipped" not in report
    for plugin in PLUGINS:
        for test in conformance_of(Kind(plugin.partition(".")[0])).tests:
            name = re.escape(PLUGINS[plugin][0])
            assert re.search(rf"^{name}/tests/\S+::{test}\S* PASSED", report, re.MULTILINE)


@pytest.mark.parametrize("module", THEIRS)
def test_they_import_the_contract_and_nothing_else_of_gatewayd(
    module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder,) = (ROOT / "tests" / "third_party").glob(f"*/src/{module}")
    monkeypatch.syspath_prepend(folder.parent)
    assert imports_outside_contract(module) == []


def environment() -> dict[str, str]:
    """Everything theirs is enabled."""
    chosen = {f"GATEWAYD_{kind.upper()}__STRATEGY": name for kind, name in ENABLED.items()}
    chosen["GATEWAYD_PROTOCOL__STRATEGIES"] = f'["{chosen.pop("GATEWAYD_PROTOCOL__STRATEGY")}"]'
    settings = {
        "GATEWAYD_SCHEDULER__FAIRSHARE__OUTPUT_COST": "3",
        "GATEWAYD_EVICTION__CLOCK__TTL_SECONDS": "5",
        "GATEWAYD_ENGINE__THREADS": "1",
        "GATEWAYD_PLUGINS__CONSOLE": '["crowd"]',
    }
    return {"PATH": os.environ["PATH"], **chosen, **settings}


@pytest.mark.parametrize("place", ["wheel"], indirect=True)
def test_they_serve_the_embedded_model(place: Any, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with log.open("wb") as stderr:
        daemon = subprocess.Popen(
            [place.folder / "bin" / "gatewayd", "serve", "--port", "0"],
            env=environment(),
            cwd=tmp_path,
            stderr=stderr,
        )
    try:
        url = wait_ready(daemon, log)
        body = {
            "model": "nano",
            "prompt": "What does shutil.copytree do? " * 3,
            "max_tokens": 24,
            "temperature": 0,
            "ignore_eos": True,
        }
        answers = [httpx.post(f"{url}/v1/completions", json=body) for _ in range(2)]
        for answer in answers:
            assert answer.status_code == 200, answer.text
            assert answer.json()["usage"]["completion_tokens"] == 24
        (text,) = {answer.json()["choices"][0]["text"] for answer in answers}
        asked = {"prompt": body["prompt"], "n_predict": 24, "temperature": 0}
        generated = httpx.post(f"{url}/completion", json=asked).json()
        assert text.startswith(generated["content"])
        assert generated["tokens_predicted"] > 0
        refused = httpx.post(f"{url}/completion", json={"prompt": 3})
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, 400)
        wrong = httpx.get(f"{url}/completion").json()["error"]
        assert wrong["message"].startswith("GET is not allowed")
        assert httpx.post(f"{url}/v1/messages").status_code == 404  # not enabled here
        daemon.send_signal(signal.SIGTERM)
        assert daemon.wait(30) == 0
    finally:
        daemon.kill()
        daemon.wait()
    assert "fault" not in log.read_text()


def wait_ready(daemon: subprocess.Popen[bytes], log: Path, seconds: float = 60) -> str:
    """Wait until the daemon serves; its URL."""
    deadline = time.monotonic() + seconds
    while "ready after" not in log.read_text():
        assert daemon.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.05)
    events = [json.loads(line)["event"] for line in log.read_text().splitlines()]
    (url,) = [str(event.split()[2]) for event in events if event.startswith("listening on ")]
    return url.rstrip(",")
