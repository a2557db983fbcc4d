"""The plugin that the guide writes in ten minutes works as it stands there."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from gatewayd_hooks.catalog import Catalog
from gatewayd_hooks.errors import BadSettings
from gatewayd_hooks.loading import PluginHost
from gatewayd_hooks.strategy import Kind

GUIDE = (Path(__file__).parents[2] / "plugins" / "README.md").read_text()
Install = Callable[..., None]


def step(number: int) -> str:
    """The code of one numbered step."""
    (code,) = re.findall(rf"^\*\*{number}\. .*?^```\w+\n(.*?)^```", GUIDE, re.M | re.S)
    return str(code)


@pytest.fixture
def plugin(install: Install, tmp_path: Path) -> Path:
    """Install the guide's plugin; the folder that has its test."""
    package = "gatewayd_sched_shortest"
    project = tomllib.loads(step(1))["project"]
    modules = dict(zip(["__init__", "config", "strategy"], map(step, (2, 3, 4)), strict=True))
    install(
        project["name"],
        project["entry-points"]["gatewayd"],
        {f"{package}/{name}": source for name, source in modules.items()},
        project["version"],
    )
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_conformance.py").write_text(step(5))
    return tmp_path / "tests"


def test_it_loads_and_takes_its_settings(plugin: Path) -> None:
    host = PluginHost(Catalog.installed())
    strategy = host.strategy(Kind.SCHEDULER, "shortest", {"max_chunk": 8})
    assert type(strategy).__name__ == "Shortest"
    with pytest.raises(BadSettings, match="max_chunk is 0"):
        host.strategy(Kind.SCHEDULER, "shortest", {"max_chunk": 0})


def test_it_conforms(plugin: Path) -> None:
    site = plugin.parent / "gatewayd-sched-shortest"
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(plugin)],
        cwd=plugin,
        env={"PYTHONPATH": str(site), "PATH": ""},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert run.returncode == 0, run.stdout
    assert re.search(r"^\d+ passed", run.stdout, re.M)
