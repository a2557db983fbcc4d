"""Documents: paths, links, names, commands and snippets are valid."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

import gatewayd
from gatewayd.cli.authoring import commands
from gatewayd.cli.lazy import ALSO, all_commands, load
from gatewayd.cli.vllm import page
from gatewayd.cli.vllm.table import OPTIONS
from gatewayd.config.load import load as load_config
from gatewayd.plugins.loaded import check_strategies
from gatewayd_hooks.routing import RouterStrategy
from gatewayd_hooks.strategy import StrategyInfo
from gatewayd_hooks.testing.routing import RouterConformance
from tests.docs.project import (
    ROOT,
    Document,
    document,
    documents,
    files,
    members,
    relative,
)

NAMES = [d.name for d in documents()]
TOPS = {path.name for path in ROOT.iterdir()}
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
CLI = document("docs/cli.md").path.read_text("utf-8")
BENCHMARKS = document("docs/benchmarks.md").path.read_text("utf-8")
ADRS = sorted(n for n in NAMES if n.startswith("docs/adr/"))
HEADINGS = ["Context", "Decision", "Consequences", "Rejected"]
# A path that only an installed wheel has.
ELSEWHERE = {"share/gatewayd/gatewayd.toml"}
# A prompt, variables and a folder may stand before the command.
COMMAND = re.compile(r"(?:\$ )?(?:\w+=\S+ )*(?:\S*/)?gatewayd ([a-z][^|&`]*)")


def makefile() -> dict[str, str]:
    """The targets that one may type, and their help."""
    text = (ROOT / "Makefile").read_text()
    rules = re.findall(r"^([a-z][a-z-]*):(?!=)(.*)$", text, re.MULTILINE)
    return {target: rest.partition("## ")[2] for target, rest in rules}


def code_of(doc: Document) -> list[str]:
    """Lines of code: spans in the prose, and what stands in blocks of no language of their own."""
    shells = ("", "text", "sh", "console", "bash")
    lines = [line for b in doc.blocks if b.language in shells for line in b.text.splitlines()]
    indented = re.findall(r"^(?: {4}|\t)(\S.*)$", doc.prose, re.MULTILINE)
    return [*doc.spans, *lines, *indented]


def test_there_are_documents_to_look_at() -> None:
    assert {"README.md", "ARCHITECTURE.md", "docs/README.md", "plugins/README.md"} <= set(NAMES)
    assert len(document("ARCHITECTURE.md").spans) > 100


# Paths, links, names


@pytest.mark.parametrize("name", NAMES)
def test_every_link_leads_somewhere(name: str) -> None:
    doc = document(name)
    for link in doc.links:
        target, _, anchor = link.partition("#")
        path = (doc.path.parent / target).resolve() if target else doc.path
        assert path.exists(), link
        if anchor:
            assert anchor in document(relative(path)).anchors, link


def looks_like_a_path(span: str) -> bool:
    """``engine/x.py`` and ``kv/pages.py`` do; ``text/event-stream`` and ``dist/`` do not."""
    if not re.fullmatch(r"\.?[\w.-]+(/[\w.-]+)*/?", span) or "/" not in span:
        return False
    return span.split("/")[0] in TOPS or bool(re.search(r"\.(py|md|toml|sh|json)$", span))


@pytest.mark.parametrize("name", NAMES)
def test_every_path_is_there(name: str) -> None:
    doc = document(name)
    for span in filter(looks_like_a_path, doc.spans):
        if span not in ELSEWHERE:
            places = (ROOT, doc.path.parent, doc.path.parent / "gatewayd_engine")
            assert any((place / span).exists() for place in places), span


@pytest.mark.parametrize("name", NAMES)
def test_every_member_that_is_named_exists(name: str) -> None:
    for span in document(name).spans:
        match = re.fullmatch(r"([A-Z]\w+)\.(\w+)(\(.*\))?", span)
        if match and match[1] in members():
            assert match[2] in members()[match[1]], span


@pytest.mark.parametrize(
    ("readme", "room"),
    [
        ("gatewayd/README.md", "gatewayd"),
        ("engine/README.md", "engine/gatewayd_engine"),
        ("tui/README.md", "tui/gatewayd_tui"),
    ],
)
def test_the_readme_of_a_room_names_everything_in_it(readme: str, room: str) -> None:
    spans = set(document(readme).spans)
    inside = {p.relative_to(ROOT / room).parts for p in files() if (ROOT / room) in p.parents}
    shown = {parts[0] + "/" * (len(parts) > 1) for parts in inside}
    assert shown - spans <= {"__init__.py", "__main__.py", "py.typed", "README.md"}
    assert {s for s in spans if re.fullmatch(r"\w+\.py", s)} <= shown


# Commands


def test_every_target_of_the_makefile_is_explained() -> None:
    assert {"run", "test"} <= makefile().keys()
    assert [target for target, text in makefile().items() if not text] == []


@pytest.mark.parametrize("name", NAMES)
def test_every_make_target_exists(name: str) -> None:
    for line in code_of(document(name)):
        for target in re.findall(r"^make ([a-z][a-z-]*)", line):
            assert target in makefile(), line


def command_of(words: list[str]) -> tuple[Any, list[str]]:
    """The command that words name, and the rest of them."""
    command, rest = load(words[0]), words[1:]
    while rest and hasattr(command, "commands") and not rest[0].startswith("-"):
        command = command.commands[rest[0]]
        rest = rest[1:]
    return command, rest


@pytest.mark.parametrize("name", NAMES)
def test_every_command_and_option_exists(name: str) -> None:
    for line in code_of(document(name)):
        match = COMMAND.match(line)
        if not match:
            continue
        words = match[1].split(" #")[0].split()
        words[0] = ALSO.get(words[0], words[0])
        assert words[0] in all_commands(), line
        command, rest = command_of(words)
        options = {o for p in command.params for o in (*p.opts, *p.secondary_opts)} | {"--help"}
        options |= {o for row in OPTIONS for o in row.names()} if words[0] == "serve" else set()
        assert {word.partition("=")[0] for word in rest if word.startswith("--")} <= options, line


def test_the_overview_of_the_command_line_shows_every_command() -> None:
    overview = CLI.partition("## Overview\n")[2].partition("## Reference\n")[0]
    named = set(re.findall(r"`gatewayd (\w+)", overview))
    assert named == set(all_commands())


def test_the_reference_of_the_command_line_is_what_the_commands_say() -> None:
    assert commands.rewrite(CLI) == CLI, (
        "run .venv/bin/python -m gatewayd.cli.authoring.commands docs/cli.md"
    )


def test_the_tables_of_vllms_options_are_those_of_the_code() -> None:
    text = document("docs/vllm-options.md").path.read_text("utf-8")
    assert page.rewrite(text) == text, (
        "run .venv/bin/python -m gatewayd.cli.vllm.page docs/vllm-options.md"
    )
    with pytest.raises(ValueError, match="no markers for options"):
        page.rewrite("# vLLM's options\n")


def test_every_command_and_subcommand_is_in_the_reference() -> None:
    headings = re.findall(r"^#+ `gatewayd (.*)`$", CLI, re.MULTILINE)
    assert {heading.split()[0] for heading in headings} == set(commands.names())
    assert {"plugin new", "key rotate", "tui"} <= set(headings)


def test_a_page_without_a_place_for_the_commands_is_refused() -> None:
    with pytest.raises(ValueError, match="no markers for commands"):
        commands.rewrite("# Command line\n")


# The README


def test_the_readme_is_read_in_a_minute() -> None:
    text = document("README.md").path.read_text("utf-8")
    assert len(text.splitlines()) <= 80
    assert max(map(len, text.splitlines())) <= 130


def test_the_readme_begins_with_the_two_commands_and_a_curl() -> None:
    shell = "".join(b.text for b in document("README.md").blocks if b.language == "sh")
    assert re.findall(r"^make (\w+)", shell, re.MULTILINE) == ["run", "test"]
    assert "curl http://127.0.0.1:8000/v1/chat/completions" in shell


def test_the_measurement_of_the_readme_is_in_the_benchmarks() -> None:
    rows = BENCHMARKS.splitlines()
    table = document("README.md").prose.partition("## One measurement")[2].partition("## ")[0]
    ours, theirs = re.findall(r"^\| \w.* \| ([\d,]+) \| ([\d,]+) \|$", table, re.MULTILINE)
    for i, concurrency in enumerate((1, 32)):
        row = next(r for r in rows if r.startswith(f"| concurrency {concurrency}, tok/s |"))
        assert f"| {ours[i]} / {theirs[i]} |" in row


# Snippets


@pytest.mark.parametrize("name", NAMES)
def test_snippets_are_toml_and_python(name: str) -> None:
    for block in document(name).blocks:
        if block.language == "toml":
            tomllib.loads(block.text)
        elif block.language == "python":
            compile(block.text, name, "exec")


def test_the_short_configuration_is_good(tmp_path: Path) -> None:
    (block,) = [b for b in document("docs/features.md").blocks if b.language == "toml"]
    file = tmp_path / "gatewayd.toml"
    file.write_text(block.text)
    loaded = load_config(file, environ={})
    assert loaded.config.scheduler.strategy == "priority"
    assert check_strategies(loaded.config) == []


def first_router() -> StrategyInfo[RouterStrategy]:
    (block,) = [b for b in document("docs/features.md").blocks if "gatewayd_routers" in b.text]
    namespace: dict[str, Any] = {}
    exec(block.text, namespace)
    (info,) = namespace["gatewayd_routers"]()
    assert isinstance(info, StrategyInfo)
    return info


class TestTheFirstRouter(RouterConformance):
    def make(self) -> RouterStrategy:
        info = first_router()
        return info.build(info.config_type())


def test_the_first_router_has_the_name_of_its_entry_point() -> None:
    assert f'"router.{first_router().name}" = ' in document("docs/features.md").prose


# The site


def test_every_page_is_in_the_navigation_of_the_site() -> None:
    nav = (ROOT / "mkdocs.yml").read_text("utf-8").partition("\nnav:\n")[2]
    listed = re.findall(r"([\w/.-]+\.md)$", nav, re.MULTILINE)
    pages = {name.removeprefix("docs/") for name in NAMES if name.startswith("docs/")}
    kinds = {p for p in pages if p.startswith("plugins/reference/kinds/") and "README" not in p}
    assert sorted(listed) == sorted(p for p in pages - kinds if not p.startswith("adr/"))


# Decisions and versions


def test_decisions_are_numbered_through() -> None:
    numbers = [int(Path(name).name[:4]) for name in ADRS]
    assert numbers == list(range(1, len(ADRS) + 1))
    assert len(ADRS) >= 8


@pytest.mark.parametrize("name", ADRS)
def test_a_decision_has_its_four_parts_and_stays_short(name: str) -> None:
    doc = document(name)
    text = doc.path.read_text()
    assert text.startswith(f"# {Path(name).name[:4]}. ")
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == HEADINGS
    assert len(text.splitlines()) <= 45


def test_every_decision_is_in_the_list() -> None:
    linked = {link for link in document("docs/README.md").links if link.startswith("adr/")}
    assert linked == {name.removeprefix("docs/") for name in ADRS}


def test_the_changelog_has_this_version() -> None:
    versions = re.findall(r"^## \[(.*?)\]", document("CHANGELOG.md").prose, re.MULTILINE)
    assert versions[0] == "Unreleased"
    assert versions[1] == VERSION == gatewayd.__version__
