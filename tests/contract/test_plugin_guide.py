"""Plugin guide: the ten-minute plugin works as printed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from gatewayd.cli.authoring.testing import PluginTestResult, find, run
from gatewayd_hooks.host.catalog import Catalog
from gatewayd_hooks.host.errors import BadSettings
from gatewayd_hooks.host.loading import PluginHost
from gatewayd_hooks.strategy import Kind
from tests.nested_pytest import QUICKLY

GUIDE = (Path(__file__).parents[2] / "docs" / "plugins" / "tutorial.md").read_text()
NAME = "gatewayd-sched-shortest"
PACKAGE = f"src/{NAME.replace('-', '_')}"


def step(number: int, language: str) -> str:
    """The first block of a language in a numbered step."""
    (body,) = re.findall(rf"^\*\*{number}\. (.*?)(?=^\*\*\d\. |^## )", GUIDE, re.M | re.S)
    return str(re.findall(rf"^```{language}\n(.*?)^```", body, re.M | re.S)[0])


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Do what the guide says, up to the tests."""
    folder = tmp_path_factory.mktemp("guide")
    begin = step(1, "console").splitlines()[0].removeprefix("$ gatewayd ").split()
    subprocess.run([sys.executable, "-m", "gatewayd", *begin], cwd=folder, check=True)
    project = folder / NAME
    written = {file.relative_to(project).as_posix() for file in project.rglob("*.*")}
    assert written == {line.split()[0] for line in step(1, "text").splitlines()[1:]}
    assert step(2, "toml") in (project / "pyproject.toml").read_text()
    (project / PACKAGE / "config.py").write_text(step(3, "python"))
    (project / PACKAGE / "strategy.py").write_text(step(4, "python"))
    (project / "tests" / "test_order.py").write_text(step(5, "python"))
    return project


@pytest.fixture(scope="module")
def result(project: Path) -> PluginTestResult:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in QUICKLY.items():
            patch.setenv(name, value)
        return run(find(str(project)), {})


def test_it_conforms_and_does_what_it_promises(result: PluginTestResult) -> None:
    assert result.is_good, result.output
    own = {test.name for test in result.tests if test.group == "Own tests"}
    assert own == {"the shortest goes first", "what came long before goes first"}
    assert {test.group for test in result.tests} == {"SchedulerConformance", "Own tests", "Offer"}


def test_it_is_in_style(project: Path) -> None:
    for command in (["check"], ["format", "--check"]):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *command, "--no-cache", project],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout


def test_it_takes_the_settings_of_the_guide(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(project / "src")
    target = find(str(project))
    host = PluginHost(Catalog(target.entries))
    strategy = host.strategy(Kind.SCHEDULER, "shortest", {"tokens_per_second": 50.0})
    assert type(strategy).__name__ == "ShortestScheduler"
    with pytest.raises(BadSettings, match="tokens_per_second is 0"):
        host.strategy(Kind.SCHEDULER, "shortest", {"tokens_per_second": 0})
