"""A stranger's plugin, in an environment of its own, works like one of ours."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
import tomllib
from pathlib import Path
from typing import Any

import httpx
import pytest

ROOT = Path(__file__).parents[2]
ENTRY_POINTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
WHERE = """
import importlib, json
names = [
    "gatewayd", "gatewayd_engine", "gatewayd_hooks", "gatewayd_sched_fcfs",
    "gatewayd_sched_lottery", "pluggy",
]
print(json.dumps({name: importlib.import_module(name).__file__ for name in names}))
"""
BUILD_ALL = """
import json
from gatewayd_hooks.catalog import Catalog
from gatewayd_hooks.loading import PluginHost
host = PluginHost(Catalog.installed())
for row in host.report():
    host.strategy(row.kind, row.name, {"tickets": [3, 2, 1]} if row.name == "lottery" else {})
rows = [[f"{r.kind}.{r.name}", r.distribution, r.state, r.reason] for r in host.report()]
print(json.dumps(rows))
"""


def test_every_package_comes_from_where_it_was_installed(place: Any) -> None:
    files = {name: Path(file) for name, file in place.ask(WHERE).items()}
    theirs = {name for name, file in files.items() if file.is_relative_to(place.site)}
    here = {name for name, file in files.items() if file.is_relative_to(ROOT)} - {"pluggy"}
    ours = {"gatewayd", "gatewayd_engine", "gatewayd_hooks", "gatewayd_sched_fcfs"}
    if place.is_editable:
        assert (theirs, here) == ({"gatewayd_sched_lottery"}, ours)
    else:
        assert (theirs, here) == (ours | {"gatewayd_sched_lottery"}, set())
    assert not files["pluggy"].is_relative_to(place.folder)  # the rest is borrowed


def test_it_stands_beside_the_built_ins_and_all_can_be_built(place: Any) -> None:
    built_ins = [[name, "gatewayd", "enabled", ""] for name in ENTRY_POINTS["gatewayd"]]
    lottery = ["scheduler.lottery", "gatewayd-sched-lottery", "enabled", ""]
    assert sorted(place.ask(BUILD_ALL)) == sorted([*built_ins, lottery])


def test_its_own_tests_pass_with_the_conformance_kit(place: Any) -> None:
    report = place.run("-m", "pytest", "-p", "no:cacheprovider", "-v", cwd=place.project)
    assert "TestLottery::" in report
    assert " skipped" not in report


@pytest.mark.parametrize("place", ["wheel"], indirect=True)
def test_it_schedules_the_embedded_model(place: Any, tmp_path: Path) -> None:
    log = tmp_path / "log"
    environment = {
        "PATH": os.environ["PATH"],
        "GATEWAYD_SCHEDULER__STRATEGY": "lottery",
        "GATEWAYD_SCHEDULER__LOTTERY__SEED": "7",
        "GATEWAYD_ENGINE__THREADS": "1",
    }
    gatewayd = place.folder / "bin" / "gatewayd"
    rows = json.loads(place.run(gatewayd, "plugins", "--json", env=environment))
    assert {row["name"] for row in rows if row["kind"] == "scheduler" and row["enabled"]} == {
        "lottery"
    }
    with log.open("wb") as stderr:
        daemon = subprocess.Popen(
            [gatewayd, "serve", "--port", "0"], env=environment, cwd=tmp_path, stderr=stderr
        )
    try:
        url = wait_ready(daemon, log)
        answer = httpx.post(
            f"{url}/v1/completions", json={"model": "nano", "prompt": "def f", "max_tokens": 5}
        )
        assert answer.status_code == 200, answer.text
        assert answer.json()["usage"]["completion_tokens"] == 5
        daemon.send_signal(signal.SIGTERM)
        assert daemon.wait(20) == 0
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
