"""Child processes: inherit no secret, and run nothing of a working folder.

The folder is a checkpoint's in which every name that a process could import is a module that leaves
a trace.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import httpx
import pytest

from gatewayd.config.tables import Config
from gatewayd_engine.model import embedded
from gatewayd_hooks.helpers import children
from gatewayd_tui.serve import BrowserConsole
from tests.daemon.conftest import Running
from tests.engine.process.test_sandbox import has_landlock

ROOT = Path(__file__).parents[2]
KEY = "operator-canary-77aa1c"
SECRETS = {
    "GATEWAYD_API_KEY": KEY,
    "GATEWAYD_LOGITS_PROCESSOR__WATERMARK__SECRET": "watermark-canary-0c1d2e3f",
    "CREDENTIALS_DIRECTORY": "/run/credentials/canary-folder",
    "AWS_SECRET_ACCESS_KEY": "cloud-canary",
    "HF_TOKEN": "hub-canary",
    "TORCH_AUTH_TOKEN": "sounds-like-one-canary",
    "UNKNOWN_TO_ANYBODY": "unlisted-canary",
}
_TRACE = "import os\nos.close(os.open({trace!r}, os.O_CREAT | os.O_WRONLY))\n"


def names() -> set[str]:
    """Every top-level name that is installed here, the standard library's too."""
    return {*sys.stdlib_module_names, *metadata.packages_distributions(), "gatewayd_canary"}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint with a module of every name, a plugin, and files that run at a start."""
    folder = tmp_path_factory.mktemp("hostile") / "model"
    shutil.copytree(embedded.folder(), folder)
    traces = folder.parent / "traces"
    traces.mkdir()
    for name in sorted({*names(), "sitecustomize", "usercustomize"}):
        if name.isidentifier():
            (folder / f"{name}.py").write_text(_TRACE.format(trace=str(traces / name)))
    (folder / "startup.pth").write_text(f"import os; os.mkdir({str(traces / 'pth')!r})\n")
    info = folder / "canary-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: canary\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[gatewayd]\nscheduler.canary = gatewayd_canary\n"
        "[gatewayd.commands]\ncanary = gatewayd_canary:main\n"
    )
    (folder / "gatewayd.toml").write_text("[server]\nport = 1\n")
    return folder


def traces(checkpoint: Path) -> list[str]:
    return sorted(path.name for path in (checkpoint.parent / "traces").iterdir())


@pytest.fixture(scope="module")
def daemon(checkpoint: Path, fresh_store: Path) -> Iterator[Running]:
    state, log = checkpoint.parent / "state", checkpoint.parent / "log"
    shutil.copytree(fresh_store, state / "gatewayd")
    env = {
        **os.environ,
        **SECRETS,
        "XDG_STATE_HOME": str(state),
        "GATEWAYD_ENGINE__THREADS": "1",
        "GATEWAYD_ENGINE__ENVIRONMENT": '["LISTED_BY_THE_OPERATOR"]',
        "LISTED_BY_THE_OPERATOR": "passed",
        "GATEWAYD_KV_TIER__STRATEGIES": '["disk"]',
        "GATEWAYD_KV_TIER__DISK__PATH": "../pages",
    }
    command = [
        str(Path(sys.executable).with_name("gatewayd")),
        "serve",
        "--model",
        ".",
        "--port",
        "0",
    ]
    with log.open("wb") as output:
        process = subprocess.Popen(command, env=env, cwd=checkpoint, stdout=output, stderr=output)
    try:
        running = Running(process, log)
        running.wait_ready()
        yield running
    finally:
        process.kill()
        process.wait()


def ask(daemon: Running, **more: Any) -> httpx.Response:
    body = {"model": "model", "prompt": "1 + 1 is", "max_tokens": 8, **more}
    headers = {"authorization": f"Bearer {KEY}"}
    return httpx.post(f"{daemon.url}/v1/completions", json=body, headers=headers, timeout=60)


def descendants(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task").glob("*/children")
    found = [int(one) for file in text for one in file.read_text().split()]
    return [*found, *(deeper for one in found for deeper in descendants(one))]


def test_nothing_of_the_working_folder_is_run(daemon: Running, checkpoint: Path) -> None:
    """Neither by the daemon, nor an engine, nor what checks grammars; and all of them work."""
    assert ask(daemon).status_code == 200
    assert ask(daemon, guided_regex="[0-9]{3}").status_code == 200
    assert len(descendants(daemon.process.pid)) == 2
    assert traces(checkpoint) == []
    assert len(list(checkpoint.glob("*.py"))) > 300


def test_children_have_what_is_listed_and_no_secret(daemon: Running) -> None:
    assert ask(daemon, guided_regex="[0-9]{4}").status_code == 200
    engine, checker = sorted(descendants(daemon.process.pid))
    for pid in (engine, checker):
        environ = Path(f"/proc/{pid}/environ").read_text()
        assert [secret for secret in SECRETS.values() if secret in environ] == []
        had = {entry.partition("=")[0] for entry in environ.split("\0") if entry}
        assert {name for name in had if children.is_private(name)} <= {"GATEWAYD_FOLDER"}
        assert {"PATH", "PYTHONSAFEPATH"} <= had
        assert os.readlink(f"/proc/{pid}/cwd") == "/"
    entries = Path(f"/proc/{engine}/environ").read_text().split("\0")
    assert "LISTED_BY_THE_OPERATOR=passed" in entries


def test_what_compiles_grammars_has_given_up_the_rest(daemon: Running) -> None:
    """In every thread: a library's that began before would be a way out. Or it is said."""
    assert ask(daemon, guided_regex="[0-9]{5}").status_code == 200
    _, checker = sorted(descendants(daemon.process.pid))
    assert "check_sandboxed" in Path(f"/proc/{checker}/cmdline").read_text()
    states = [file.read_text() for file in Path(f"/proc/{checker}/task").glob("*/status")]
    assert len(states) > 1
    is_confined = all("\nSeccomp:\t2\n" in state for state in states) and has_landlock()
    assert is_confined != daemon.said("grammar checkers run without a sandbox")
    assert all("\nNoNewPrivs:\t1\n" in state for state in states)


def test_relative_paths_are_meant_from_the_daemons_folder(
    daemon: Running, checkpoint: Path
) -> None:
    """The model's was ``.``, the disk tier's ``../pages``."""
    assert list((checkpoint.parent / "pages").iterdir())
    assert not Path("/pages").exists()


@pytest.mark.parametrize("start", ["-m", "script"])
def test_no_command_reads_the_working_folder(checkpoint: Path, start: str) -> None:
    """Of ``python -m`` all that is imported behind its first line; see the operations manual."""
    script = [str(Path(sys.executable).with_name("gatewayd"))]
    command = script if start == "script" else [sys.executable, "-m", "gatewayd"]
    before = traces(checkpoint)
    folder = checkpoint
    if start == "-m":
        folder = checkpoint.parent / "without"
        # What Python itself imports to find a module is read before our first line.
        ours = {f"{name}.py" for name in (*sys.stdlib_module_names, "gatewayd")}
        shutil.copytree(checkpoint, folder, ignore=lambda _, files: ours.intersection(files))
    for words in (["plugin", "list", "--json"], ["config", "show"]):
        done = subprocess.run([*command, *words], cwd=folder, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        if words[0] == "plugin":
            assert "canary" not in {row["name"] for row in json.loads(done.stdout)}
        else:
            assert re.search(r"^server\.port +8000 +default", done.stdout, re.MULTILINE)
    assert traces(checkpoint) == before


def test_a_browsers_console_imports_nothing_from_the_folder() -> None:
    console = BrowserConsole([], "127.0.0.1", 1, None)
    assert console.command.startswith(f"{sys.executable} -P -m gatewayd tui")


def test_an_environment_is_what_is_listed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    source = {
        "PATH": f"/usr/bin::bin:.:{tmp_path}",
        "PYTHONPATH": "/a::b",
        "LC_ALL": "C",
        "CUDA_VISIBLE_DEVICES": "1",
        "OTHER": "yes",
        **SECRETS,
    }
    assert children.environment({"MORE": "1"}, ["OTHER", "GATEWAYD_API_KEY"], source) == {
        "PATH": f"/usr/bin:{tmp_path}",
        "PYTHONPATH": f"/a:{tmp_path}/b",
        "LC_ALL": "C",
        "CUDA_VISIBLE_DEVICES": "1",
        "OTHER": "yes",
        "MORE": "1",
        "PYTHONSAFEPATH": "1",
        "GATEWAYD_FOLDER": str(tmp_path),
    }
    own = children.environment_of_person(source)
    assert own["AWS_SECRET_ACCESS_KEY"] == "cloud-canary"
    assert not {"GATEWAYD_API_KEY", "CREDENTIALS_DIRECTORY"} & own.keys()


def test_the_list_is_in_the_operations_manual() -> None:
    manual = (ROOT / "docs/operations/secure.md").read_text()
    named = {*children.NAMES, *children.PREFIXES}
    assert {name for name in named if f"`{name}`" not in manual} == set()


def test_a_variable_of_the_daemon_cannot_be_listed() -> None:
    with pytest.raises(ValueError, match="GATEWAYD_API_KEY: the daemon's own"):
        Config(engine={"environment": ["GATEWAYD_API_KEY"]})  # type: ignore[arg-type]
