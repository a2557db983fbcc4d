"""``gatewayd plugin new``: complete, clean and conforming projects of every kind."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from gatewayd.cli.authoring.kinds import KIND_TEMPLATES
from gatewayd.cli.authoring.kit import conformance_of, kit_classes
from gatewayd.cli.authoring.scaffold import (
    MOST_LETTERS,
    TEMPLATES,
    ScaffoldError,
    parse_kind,
    project_name,
    render,
    write,
)
from gatewayd_hooks.host.kinds import KINDS
from gatewayd_hooks.strategy import Kind, StrategyConfig
from tests.nested_pytest import with_examples
from tests.random_cases import IS_NIGHTLY

LONGEST = "l" * (MOST_LETTERS - 5) + "_2_de"
NAMES = ["x", LONGEST]
EXAMPLES = 30 if IS_NIGHTLY else 10
"""Of the kit for each template; broken as in ``tests/contract/kit``, each fails within 30."""
HEADINGS = ["Name", "Description", "Configuration", "Metrics", "Example"]


@pytest.fixture(scope="module")
def projects(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project of every kind, under the shortest name and the longest."""
    folder = tmp_path_factory.mktemp("projects")
    for kind in KIND_TEMPLATES:
        for name in NAMES:
            write(kind, name, folder)
    return folder


def python(*argv: str | Path, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *map(str, argv)],
        cwd=cwd,
        env=os.environ | env,
        capture_output=True,
        text=True,
        check=False,
    )


def sources(folder: Path) -> str:
    return os.pathsep.join(str(each) for each in sorted(folder.glob("*/src")))


# Complete


def test_every_kind_can_be_begun() -> None:
    assert set(KIND_TEMPLATES) == set(Kind) == {*KINDS, Kind.OBSERVER, Kind.CONSOLE}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_a_strategy_of_its_own(kind: Kind) -> None:
    assert (TEMPLATES / kind / "src/package/strategy.py.tmpl").is_file()


@pytest.mark.parametrize("kind", KIND_TEMPLATES)
def test_every_kind_has_one_class_of_the_kit(kind: Kind) -> None:
    found = conformance_of(kind)
    assert [each.builds for each in kit_classes()].count(found.builds) == 1
    assert len(found.tests) >= 3


@pytest.mark.parametrize("kind", KIND_TEMPLATES)
def test_a_project_has_all_that_a_plugin_needs(kind: Kind) -> None:
    files = render(kind, "fair_share")
    name = project_name(kind, "fair_share")
    package = name.replace("-", "_")
    source = {f"src/{package}/__init__.py", f"src/{package}/py.typed"}
    if kind in KINDS:
        source |= {f"src/{package}/config.py", f"src/{package}/strategy.py"}
    assert files.keys() == {"pyproject.toml", "README.md", "tests/test_conformance.py"} | source
    project = tomllib.loads(files["pyproject.toml"])["project"]
    assert project["entry-points"]["gatewayd"] == {f"{kind}.fair_share": package}
    assert project["name"] == name
    readme = files["README.md"]
    assert re.findall(r"^## (.*)$", readme, re.MULTILINE) == HEADINGS
    assert f"`{kind}.fair_share`" in readme
    assert not any("$" in text for text in files.values())


@pytest.mark.parametrize("kind", KINDS)
def test_a_readme_has_the_settings_of_the_project(kind: Kind) -> None:
    files = render(kind, "x")
    namespace: dict[str, object] = {}
    exec(next(text for path, text in files.items() if path.endswith("config.py")), namespace)
    (config,) = [
        each
        for each in namespace.values()
        if isinstance(each, type)
        and issubclass(each, StrategyConfig)
        and each is not StrategyConfig
    ]
    rows = re.findall(r"^\| `(\w+)` \| `(.*?)` \|", files["README.md"], re.MULTILINE)
    assert dict(rows) == {key: str(field.default) for key, field in config.model_fields.items()}


@pytest.mark.parametrize("kind", KIND_TEMPLATES)
def test_a_project_imports_the_contract_and_nothing_else_of_gatewayd(kind: Kind) -> None:
    imported = set()
    for path, text in render(kind, "x").items():
        for node in ast.walk(ast.parse(text)) if path.endswith(".py") else ():
            if isinstance(node, ast.ImportFrom):
                imported.add(str(node.module).partition(".")[0])
            elif isinstance(node, ast.Import):
                imported |= {alias.name.partition(".")[0] for alias in node.names}
    package = project_name(kind, "x").replace("-", "_")
    assert {name for name in imported if name.startswith("gatewayd")} <= {package, "gatewayd_hooks"}


# Clean and conforming


def test_every_project_is_in_style(projects: Path) -> None:
    for command in (["check"], ["format", "--check"]):
        done = python("ruff", *command, "--no-cache", projects, cwd=projects)
        assert done.returncode == 0, done.stdout


def test_every_project_passes_its_tests(projects: Path) -> None:
    folders = sorted(projects.glob("*-x/tests"))
    assert len(folders) == len(KIND_TEMPLATES)
    done = python(
        *["pytest", "-v", "--import-mode=importlib", "-p", "no:cacheprovider", "--rootdir"],
        *(projects, *folders),
        cwd=projects,
        **with_examples(EXAMPLES, *sorted(projects.glob("*/src"))),
    )
    assert done.returncode == 0, done.stdout
    for kind in KIND_TEMPLATES:
        path = f"^{project_name(kind, 'x')}/tests/test_conformance.py::Test\\w+::"
        passed = re.findall(rf"{path}(\w+)\S* PASSED", done.stdout, re.MULTILINE)
        assert set(passed) == set(conformance_of(kind).tests), kind


@pytest.mark.slow
def test_every_project_is_typed(projects: Path) -> None:
    packages = sorted(projects.glob("*/src/*"))
    done = python(
        *["mypy", "--strict", "--cache-dir", "cache"],
        *packages,
        cwd=projects,
        MYPYPATH=sources(projects),
    )
    assert done.returncode == 0, done.stdout


# Names


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("schedular", "did you mean scheduler?"),
        ("evictions", "did you mean eviction?"),
        ("prefix-cache", "did you mean prefix_cache?"),
        ("nonsense", "there is scheduler, prefix_cache, "),
    ],
)
def test_a_kind_that_is_not_there_is_named_with_the_nearest(text: str, hint: str) -> None:
    with pytest.raises(ScaffoldError, match=re.escape(f"unknown plugin kind {text}; {hint}")):
        parse_kind(text)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("Fair-Share", "how about fair_share?"),
        ("n2-gram3", "how about n2_gram3?"),
        ("lru", "eviction.lru is already offered by gatewayd"),
        ("2q", "how about q?"),
        ("a__b", "how about a_b?"),
        ("", "lowercase letters"),
        ("../x", "how about x?"),
        ("none", "it disables a slot"),
        ("l" * (MOST_LETTERS + 1), f"at most {MOST_LETTERS}"),
    ],
)
def test_a_name_that_cannot_be_is_refused_with_the_reason(
    name: str, reason: str, tmp_path: Path
) -> None:
    with pytest.raises(ScaffoldError, match=re.escape(reason)):
        write(Kind.EVICTION, name, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_what_is_there_already_is_left_alone(tmp_path: Path) -> None:
    folder = write(Kind.EVICTION, "x", tmp_path)
    (folder / "README.md").write_text("mine")
    with pytest.raises(ScaffoldError, match="already exists; choose another name"):
        write(Kind.EVICTION, "x", tmp_path)
    assert (folder / "README.md").read_text() == "mine"


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ScaffoldError, match=r"cannot create .*file/gatewayd-evict-x: "):
        write(Kind.EVICTION, "x", tmp_path / "file")
