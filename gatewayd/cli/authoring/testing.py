"""Runner of a plugin's own tests, and of its kind's conformance tests unless included in them."""

from __future__ import annotations

import importlib.util
import json
import os
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gatewayd.cli.authoring.kit import PLUGINS, RECORD, conformance_of
from gatewayd.plugins.probe_process import unimportable
from gatewayd_hooks.helpers import children
from gatewayd_hooks.host.catalog import GROUP, Catalog, Entry
from gatewayd_hooks.host.errors import PluginError, nearest
from gatewayd_hooks.strategy import Kind

# Not imported here: they need pytest.
_RECORDER = "gatewayd.cli.authoring.recorder"
_SUITE = Path(__file__).with_name("suite.py")
# No cache: a run leaves no files in the project.
_OPTIONS = ("-q", "--no-header", "--tb=short", "-p", "no:cacheprovider", "-p", _RECORDER)
_NO_TESTS = 5  # pytest's exit status


class CannotTest(Exception):
    """There is nothing to test, or pytest is missing; the message has the remedy."""


@dataclass(frozen=True, slots=True)
class Test:
    """Result of one test.

    Attributes:
        group: the kit's class, ``Offer`` or ``Own tests``.
        name: of the test, as a sentence.
        outcome: ``passed``, ``failed`` or ``skipped``.
        seconds: duration of the test.
        text: reason of a failure or skip, in one line.
    """

    group: str
    name: str
    outcome: str
    seconds: float
    text: str


@dataclass(frozen=True, slots=True)
class PluginTestResult:
    """Result of all tests of a target.

    Attributes:
        plugins: tested plugins, ``<kind>.<name>``.
        tests: results in the order of execution.
        output: pytest's output if a test failed.
    """

    plugins: tuple[str, ...]
    tests: tuple[Test, ...]
    output: str

    @property
    def is_good(self) -> bool:
        """Whether there was at least one test, and none failed."""
        return bool(self.tests) and all(test.outcome != "failed" for test in self.tests)


@dataclass(frozen=True, slots=True)
class PluginTestTarget:
    """Plugins to be tested.

    Attributes:
        entries: the plugins.
        folder: their project; None for an installed plugin.
    """

    entries: tuple[Entry, ...]
    folder: Path | None


def find(text: str) -> PluginTestTarget:
    """Find the project in a folder, or an installed plugin by its name.

    Raises:
        CannotTest: there is neither.
    """
    if (Path(text) / "pyproject.toml").is_file():
        return _project(Path(text).resolve())
    kind, _, name = text.partition(".")
    if kind in set(Kind) and name:
        try:
            return PluginTestTarget((Catalog.installed().find(Kind(kind), name),), None)
        except PluginError as error:
            raise CannotTest(str(error)) from None
    plugins = [entry.plugin for entry in Catalog.installed().entries]
    near = nearest(text, plugins)
    raise CannotTest(
        f"{text} is neither a folder with a pyproject.toml nor an installed plugin, <kind>.<name>"
        + (f"; did you mean {near}?" if near else "")
    )


def run(target: PluginTestTarget, settings: Mapping[str, Mapping[str, Any]]) -> PluginTestResult:
    """Run the tests in separate processes.

    Args:
        target: the plugins to test.
        settings: of each plugin, by ``<kind>.<name>``; defaults for missing ones.

    Raises:
        CannotTest: pytest or hypothesis is not installed, or a plugin cannot be imported.
    """
    missing = [name for name in ("pytest", "hypothesis") if not importlib.util.find_spec(name)]
    if missing:
        raise CannotTest(f"the conformance kit needs {' and '.join(missing)}: pip install them")
    path = None if target.folder is None else _search_path(_roots(target))
    for entry in target.entries:
        if problem := unimportable(entry, settings.get(entry.plugin, {}), path):
            raise CannotTest(f"{entry.plugin} {problem.text}; {problem.advice}")
    tests: list[Test] = []
    covered: set[str] = set()
    output = ""
    if target.folder is not None:
        # Before the kit: conformance classes that the project subclasses need not run again.
        own, output, covered = _pytest([], target, target.folder)
        tests += own
    with tempfile.TemporaryDirectory() as scratch:
        plugins = Path(scratch) / "plugins.json"
        plugins.write_text(json.dumps([_described(e, covered, settings) for e in target.entries]))
        # An empty configuration; otherwise pytest would use one of a parent folder.
        Path(scratch, "pytest.ini").write_text("[pytest]\n")
        variables = {PLUGINS: str(plugins)}
        options = [str(_SUITE), "-c", "pytest.ini", "--rootdir", scratch]
        more, more_output, _ = _pytest(options, target, Path(scratch), variables)
    return PluginTestResult(
        tuple(entry.plugin for entry in target.entries), tuple(tests + more), output + more_output
    )


def _described(
    entry: Entry, covered: set[str], settings: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """Describe an entry in the format of ``suite``."""
    return {
        "entry": asdict(entry),
        "settings": dict(settings.get(entry.plugin, {})),
        "conformance": conformance_of(Kind(entry.kind)).name not in covered,
    }


def _project(folder: Path) -> PluginTestTarget:
    try:
        project = tomllib.loads((folder / "pyproject.toml").read_text("utf-8")).get("project", {})
    except (OSError, ValueError) as error:
        raise CannotTest(f"{folder / 'pyproject.toml'} cannot be read: {error}") from error
    points = project.get("entry-points", {}).get(GROUP, {})
    if not points:
        raise CannotTest(
            f"{folder / 'pyproject.toml'} has no [project.entry-points.{GROUP}]; "
            'it needs a line "<kind>.<name>" = "<module>"'
        )
    name, version = str(project.get("name", "unnamed")), str(project.get("version", "0"))
    entries = []
    for point, module in points.items():
        kind, _, own = point.partition(".")
        entry = Entry(kind, own, name, version, module)
        if not entry.is_known:
            near = nearest(kind, list(Kind))
            hint = f"; did you mean {near}.{own or '<name>'}?" if near else ""
            raise CannotTest(f'the entry point "{point}" is not <kind>.<name>{hint}')
        entries.append(entry)
    return PluginTestTarget(tuple(entries), folder)


def _pytest(
    options: Sequence[str],
    target: PluginTestTarget,
    cwd: Path,
    variables: Mapping[str, str] | None = None,
) -> tuple[list[Test], str, set[str]]:
    """Run pytest.

    Returns:
        Results, pytest's output if a test failed, and the kit's classes that ran.
    """
    with tempfile.NamedTemporaryFile("r", encoding="utf-8") as record:
        done = children.run(
            children.python("-m", "pytest", *_OPTIONS, *options),
            cwd=str(cwd),
            env=children.environment_of_person()
            | dict(variables or {})
            | {
                RECORD: record.name,
                "PYTHONWARNINGS": _warnings(),
                # A project is tested without being installed.
                "PYTHONPATH": _search_path(_roots(target)),
            },
            capture_output=True,
            text=True,
            check=False,
        )
        notes = [json.loads(line) for line in record]
    is_good = done.returncode in (0, _NO_TESTS)
    output = "" if is_good else done.stdout + done.stderr
    tests = [_test(note) for note in notes]
    # pytest itself has failed, for instance by an error in ``conftest.py``.
    if not is_good and not any(test.outcome == "failed" for test in tests):
        text = f"pytest ended with status {done.returncode}"
        tests.append(Test("pytest", "pytest runs", "failed", 0.0, text))
    return tests, output, {note["kit"] for note in notes}


def _test(note: Mapping[str, Any]) -> Test:
    if note["is_kit"]:
        group = note["kit"]
    else:
        group = "Offer" if note["where"] == "TestOffer" else "Own tests"
    name = note["test"].removeprefix("test_").replace("_", " ")
    return Test(group, name, note["outcome"], note.get("seconds", 0.0), note["text"])


def _roots(target: PluginTestTarget) -> list[Path]:
    return [] if target.folder is None else [target.folder / "src", target.folder]


def _warnings() -> str:
    """Return warning filters that silence pytest plugins about unset configuration options."""
    ours = "ignore:The configuration option"
    return ",".join(filter(None, [os.environ.get("PYTHONWARNINGS"), ours]))


def _search_path(roots: Sequence[Path]) -> str:
    inherited = os.environ.get("PYTHONPATH", "")
    return os.pathsep.join([*(str(root) for root in roots if root.is_dir()), inherited]).strip(
        os.pathsep
    )
