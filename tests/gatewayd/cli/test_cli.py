"""Command line: options, output and exit status in a process of its own."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gatewayd import __version__
from gatewayd.cli.lazy import COMMANDS
from tests.nested_pytest import BRIEFLY


def _run(*arguments: object, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gatewayd", *map(str, arguments)],
        env={**os.environ, "COLUMNS": "160", **env},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def _json(*arguments: object, **env: str) -> Any:
    return json.loads(_run(*arguments, "--json", **env).stdout)


def cpu_seconds_of_children() -> float:
    times = os.times()
    return times.children_user + times.children_system


def test_version_is_printed() -> None:
    assert _run("--version").stdout == f"gatewayd {__version__}\n"


def test_help_lists_every_command() -> None:
    out = _run("--help").stdout
    for name, command in COMMANDS.items():
        assert name in out
        assert command.summary in out


@pytest.mark.flaky(reruns=2)
def test_help_is_fast_and_imports_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "from gatewayd.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'uvicorn', 'starlette', 'tokenizers', 'numpy'} & set(sys.modules)\n"
        "print('HEAVY', sorted(heavy))\n"
    )
    best = 10.0
    for _ in range(3):
        began = cpu_seconds_of_children()
        done = subprocess.run(
            [sys.executable, "-c", code, "--help"], capture_output=True, text=True, check=True
        )
        best = min(best, cpu_seconds_of_children() - began)
        assert "HEAVY []" in done.stdout
    assert best < 1.0


def test_an_unknown_command_or_option_is_wrong_usage() -> None:
    assert _run("sevre").returncode == 2
    assert _run("serve", "--prot", 1).returncode == 2


def test_config_show_prints_values_and_origins() -> None:
    rows = {r["key"]: r for r in _json("config", "show", GATEWAYD_SERVER__PORT="81")}
    assert rows["server.port"] == {
        "key": "server.port",
        "value": 81,
        "origin": "environment GATEWAYD_SERVER__PORT",
    }
    text = _run("config", "show", GATEWAYD_API_KEY="swordfish", COLUMNS="80").stdout
    assert all(f"\n{key} " in text for key in rows)
    assert "swordfish" not in text
    assert "***" in text


def test_config_show_hides_the_settings_of_an_unknown_plugin() -> None:
    for options in ((), ("--json",)):
        done = _run("config", "show", *options, GATEWAYD_ROUTER__MISSING__TOKEN="swordfish")
        assert "router.missing.token" in done.stdout
        assert "swordfish" not in done.stdout


def test_config_check_accepts_the_manual() -> None:
    manual = Path(__file__).parents[3] / "etc" / "gatewayd.toml"
    assert _json("config", "check", "--config", manual) == {"ok": True, "problems": []}


def test_config_check_names_a_strategy_that_is_not_installed() -> None:
    done = _run("config", "check", GATEWAYD_ROUTER__STRATEGY="missing")
    assert done.returncode == 78
    assert "missing" in done.stderr


def test_config_check_refuses_an_unknown_setting_of_a_strategy() -> None:
    done = _run("config", "check", GATEWAYD_SCHEDULER__FCFS__NONSENSE="1")
    assert done.returncode == 78
    assert "nonsense" in done.stderr


def test_doctor_finds_this_machine_fit() -> None:
    report = _json("doctor", GATEWAYD_SERVER__PORT="0")
    assert report["ok"] is True
    states = {check["subject"]: check["state"] for check in report["checks"]}
    assert states["torch"] == states["model"] == states["weights"] == "ok"
    # A busy machine imports some of them slowly, and is told so.
    assert states["plugins"] in ("ok", "warning")


@pytest.mark.parametrize("command", [("doctor",), ("config", "show"), ("config", "check")])
def test_a_bad_configuration_ends_every_command_with_78(command: tuple[str, ...]) -> None:
    done = _run(*command, GATEWAYD_SERVER__PROT="1")
    assert done.returncode == 78
    assert "did you mean server.port?" in done.stderr


def test_doctor_names_a_port_in_use_and_a_folder_that_is_no_model(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        wrong = {"GATEWAYD_MODEL__PATH": str(tmp_path), "GATEWAYD_ROUTER__STRATEGY": "prefxi"}
        wrong["GATEWAYD_LOGITS_PROCESSOR__STRATEGIES"] = "[]"  # each imports torch
        done = _run("doctor", "--json", GATEWAYD_SERVER__PORT=port, **wrong)
    assert done.returncode == 1
    checks = {check["subject"]: check for check in json.loads(done.stdout)["checks"]}
    assert checks["port"]["state"] == "failure"
    assert port in checks["port"]["text"]
    assert checks["model"]["state"] == "failure"
    assert str(tmp_path) in checks["model"]["text"]
    assert checks["plugins"]["state"] == "failure"
    assert "router.prefxi the configuration names it, but it is not" in checks["plugins"]["text"]
    assert "write prefix in [router]" in checks["plugins"]["text"]


def _catalogue(folder: Path) -> Path:
    """A file with a model that can be served and one that cannot."""
    file = folder / "g.toml"
    file.write_text(
        "[logits_processor]\nstrategies = []\n"  # each imports torch
        '[models.good]\npath = "embedded:nano"\n'
        '[models.bad]\npath = "/no/such"\n'
        '[models.bad.scheduler]\nstrategy = "fcfz"\n'
    )
    return file


def test_config_check_and_plugin_list_are_about_all_models(tmp_path: Path) -> None:
    file = _catalogue(tmp_path)
    done = _run("config", "check", "--config", file)
    assert done.returncode == 78
    (problem,) = done.stderr.splitlines()
    assert problem.startswith("[models.bad]: ")
    assert "fcfz" in problem
    # A choice of all models is not one model's problem.
    done = _run("config", "check", "--config", file, GATEWAYD_ROUTER__STRATEGY="missing")
    problems = done.stderr.splitlines()
    assert sorted("[models.bad]" in each for each in problems) == [False, True]
    file.write_text(file.read_text().replace("fcfz", "fair"))
    rows = _json("plugins", "--config", file)
    enabled = {row["name"] for row in rows if row["enabled"] and row["kind"] == "scheduler"}
    assert enabled == {"fcfs", "fair"}


def test_init_shows_a_request_for_the_first_of_several_models(tmp_path: Path) -> None:
    file = _catalogue(tmp_path)
    done = _run("init", "--config", file, "--state", tmp_path / "state")
    assert done.returncode == 0
    assert '"model": "good"' in done.stdout


@pytest.mark.parametrize("text", [None, "{", "[]"])
def test_serve_names_a_config_json_that_cannot_be_read(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    done = _run("serve", "--port", 0, "--model", tmp_path)
    assert done.returncode == 1
    assert f"cannot read {tmp_path}/config.json" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("words", [("plugin",), ("plugins",), ("plugin", "list")])
def test_plugin_lists_what_is_installed_and_what_is_enabled(words: tuple[str, ...]) -> None:
    rows = _json(*words)
    enabled = {(row["kind"], row["name"]) for row in rows if row["enabled"]}
    assert ("scheduler", "fcfs") in enabled
    assert ("scheduler", "priority") in {(r["kind"], r["name"]) for r in rows} - enabled


@pytest.mark.parametrize("words", [("plugin", "list"), ("plugin", "doctor", "kv_tier.disk")])
def test_nothing_is_cut_where_no_terminal_is(words: tuple[str, ...]) -> None:
    done = _run(*words, COLUMNS="20")
    (line,) = [line for line in done.stdout.splitlines() if "disk" in line]
    assert "gatewayd 0.1.0" in line


def test_kinds_and_names_are_whole_on_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    from rich.console import Console
    from rich.table import Table

    from gatewayd.cli.common import whole

    table = Table(whole("kind", ["logits_processor"]), whole("name", ["a_name"]), "long words")
    table.add_row("logits_processor", "a_name", "many words " * 9)
    console = Console(width=34)
    with console.capture() as capture:
        console.print(table)
    assert "logits_processor" in capture.get()
    assert "a_name" in capture.get()


def test_help_shows_the_names_of_tables_and_breaks_no_sentence() -> None:
    for command in ("swap", "pin", "strategies"):
        assert "[admin] socket" in _run(command, "--help").stdout
    assert "in /metrics, vllm:spec" in _run("spec", "estimate", "--help").stdout


def test_pin_names_the_longest_time() -> None:
    done = _run("pin", "x", "--for", "30d")
    assert (done.returncode, done.stdout) == (2, "")
    assert "--for 30d is too long: at most 7d" in done.stderr


def test_watermark_detect_names_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    chosen = {
        "GATEWAYD_LOGITS_PROCESSOR__STRATEGIES": '["watermark"]',
        "GATEWAYD_LOGITS_PROCESSOR__WATERMARK__SECRET": "0123456789abcdef0123456789abcdef",
    }
    done = _run("watermark", "detect", tmp_path / "nope", **chosen)
    assert done.returncode == 1
    assert done.stderr == f"gatewayd: cannot read {tmp_path}/nope: No such file or directory\n"


def test_plugin_new_writes_a_project_that_plugin_test_passes(tmp_path: Path) -> None:
    done = _run("plugin", "new", "eviction", "mine", "--path", tmp_path)
    assert done.returncode == 0, done.stderr
    project = tmp_path / "gatewayd-evict-mine"
    assert str(project / "pyproject.toml") in done.stdout
    good = _run("plugin", "test", project, **BRIEFLY)
    assert good.returncode == 0, good.stdout
    assert "passed  every page of a large pool is evicted once" in good.stdout
    (project / "tests" / "test_more.py").write_text("def test_what_fails():\n    assert not 1\n")
    broken = _run("plugin", "test", project, "--json", **BRIEFLY)
    assert broken.returncode == 1
    assert json.loads(broken.stdout)["ok"] is False


def test_plugin_new_says_what_it_cannot_make() -> None:
    done = _run("plugin", "new", "schedular", "x")
    assert (done.returncode, done.stdout) == (1, "")
    assert "unknown plugin kind schedular; did you mean scheduler?" in done.stderr


def test_plugin_test_says_what_it_cannot_find() -> None:
    done = _run("plugin", "test", "scheduler.fcsf")
    assert (done.returncode, done.stdout) == (1, "")
    assert "did you mean scheduler.fcfs?" in done.stderr


def test_plugin_doctor_finds_the_built_ins_well() -> None:
    names = ["scheduler.fcfs", "prefix_cache.hash", "executor.local", "drafter.ngram"]
    report = _json("plugin", "doctor", *names)
    assert report["ok"] is True
    assert {row["plugin"]: row["state"] for row in report["plugins"]} == dict.fromkeys(names, "ok")


def test_plugin_doctor_names_what_is_missing() -> None:
    wrong = {"GATEWAYD_ROUTER__STRATEGY": "prefxi"}
    done = _run("plugin", "doctor", "router.prefxi", "router.prefix", **wrong)
    assert done.returncode == 1
    assert "router.prefxi: the configuration names it, but it is not installed" in done.stdout
    assert "write prefix in [router]" in done.stdout
    assert done.stdout.endswith("1 failure, 1 ok\n")
    assert "did you mean router.prefix?" in _run("plugin", "doctor", "router.prefxi").stderr
