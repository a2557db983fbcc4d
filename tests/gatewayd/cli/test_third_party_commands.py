"""Third-party commands: other distributions' entry points, sound and broken."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gatewayd.cli import app, lazy, third_party

Bring = Callable[..., None]


@pytest.fixture
def bring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bring]:
    """A function that installs a command: its name, its module's source, and what it points at."""
    monkeypatch.syspath_prepend(tmp_path)
    points: list[EntryPoint] = []
    before = set(sys.modules)

    def add(name: str, source: str, attribute: str = "run") -> None:
        module = f"stranger_{name}"
        (tmp_path / f"{module}.py").write_text(source)
        points.append(EntryPoint(name, f"{module}:{attribute}", third_party.GROUP))
        third_party.commands.cache_clear()
        lazy.all_commands.cache_clear()

    monkeypatch.setattr(third_party, "entry_points", lambda group: points)
    yield add
    for name in set(sys.modules) - before:
        if name.startswith("stranger_"):
            del sys.modules[name]
    third_party.commands.cache_clear()
    lazy.all_commands.cache_clear()


def told(*words: str) -> Any:
    return CliRunner().invoke(app, words, env={"COLUMNS": "160"})


def test_it_is_listed_with_its_documentation_and_not_imported(bring: Bring) -> None:
    bring("greet", 'raise SystemError\n\n\ndef run() -> None:\n    """Say hello.\n\n    More."""\n')
    out = told("--help").output
    assert "greet" in out
    assert "Say hello." in out
    assert "More." not in out
    assert "stranger_greet" not in sys.modules


def test_it_runs_with_options_of_its_own(bring: Bring) -> None:
    bring(
        "greet", 'def run(name: str = "you") -> None:\n    """Say."""\n    print("hello", name)\n'
    )
    assert told("greet", "--name", "me").output == "hello me\n"


def test_a_group_of_commands_is_described_by_its_module(bring: Bring) -> None:
    source = (
        '"""Many greetings."""\nimport typer\napp = typer.Typer()\n\n\n'
        '@app.command()\ndef one() -> None:\n    print("one")\n\n\n'
        '@app.command()\ndef two() -> None:\n    print("two")\n'
    )
    bring("greet", source, "app")
    assert "Many greetings." in told("--help").output
    assert told("greet", "two").output == "two\n"


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("def run(:\n", "SyntaxError"),
        ("raise RuntimeError('not today')\n", "RuntimeError: not today"),
        ("x = 1\n", "AttributeError"),
        ("import sys\nsys.exit('gone')\n", ""),
    ],
)
def test_a_broken_one_costs_only_itself(bring: Bring, source: str, why: str) -> None:
    bring("greet", source)
    listed = told("--help")
    assert listed.exit_code == 0
    assert "greet" in listed.output
    assert "serve" in listed.output
    assert told("config", "--help").exit_code == 0
    ended = told("greet")
    assert ended.exit_code == 1
    assert why in ended.output
    assert "Traceback" not in ended.output


def test_one_without_a_module_is_listed_and_says_what_is_missing(
    bring: Bring, tmp_path: Path
) -> None:
    bring("greet", "")
    (tmp_path / "stranger_greet.py").unlink()
    assert "Broken command of" in told("--help").output
    assert "No module named 'stranger_greet'" in told("greet").output


def test_none_takes_a_name_of_ours(bring: Bring) -> None:
    bring("serve", 'def run() -> None:\n    """Steal."""\n')
    assert "Steal." not in told("--help").output
    assert lazy.all_commands()["serve"].module == "gatewayd.cli.serve"


def test_ours_are_listed_with_what_they_do() -> None:
    out = told("--help").output
    assert "Open the terminal console: watch and operate a running daemon." in out
    assert "Print live statistics of a running daemon as tables" in out
