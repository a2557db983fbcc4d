"""Plugin documentation: contract and plugins are documented, and the documents are true."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

import pytest

from gatewayd.cli.authoring.kit import conformance_of
from gatewayd.cli.authoring.reference import reference
from gatewayd_hooks import hookspecs
from gatewayd_hooks.host.catalog import Catalog
from gatewayd_hooks.host.kinds import KINDS
from gatewayd_hooks.host.loading import PluginHost
from gatewayd_hooks.strategy import Kind, StrategyConfig

ROOT = Path(__file__).parents[2]
PLUGINS = ROOT / "plugins"
FOLDER = ROOT / "docs" / "plugins"
GUIDE = "\n".join(page.read_text() for page in sorted(FOLDER.rglob("*.md")))
READMES = sorted(PLUGINS.glob("gatewayd_*/README.md"))
HEADINGS = ["Name", "Description", "Configuration", "Metrics", "Example"]
BUILT_INS = [e for e in Catalog.installed().entries if e.distribution == "gatewayd"]


def signatures() -> list[str]:
    """Every hook as it is written in ``hookspecs``."""
    tree = ast.parse(inspect.getsource(hookspecs))
    return [
        f"{node.name}({ast.unparse(node.args)}) -> {ast.unparse(node.returns)}"
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and node.returns is not None
    ]


def configs() -> dict[str, type[StrategyConfig]]:
    """Settings of every built-in strategy."""
    host = PluginHost(Catalog.installed())
    return {
        entry.plugin: host.info(Kind(entry.kind), entry.name).config_type for entry in BUILT_INS
    }


def readme_of(plugin: str) -> str:
    (entry,) = [e for e in BUILT_INS if e.plugin == plugin]
    return (PLUGINS / entry.module / "README.md").read_text()


def section(text: str, heading: str) -> str:
    """What stands under a heading of the second level."""
    (found,) = re.findall(rf"^## {heading}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    return str(found)


def test_there_are_hooks_to_look_for() -> None:
    assert "gatewayd_started(info: DaemonInfo) -> None" in signatures()
    assert len(signatures()) == 29


def test_the_reference_is_what_the_contract_says() -> None:
    pages = reference(FOLDER)
    written = {page: page.read_text() if page.exists() else "" for page in pages}
    assert written == pages, "run .venv/bin/python -m gatewayd.cli.authoring.reference docs/plugins"
    assert set((FOLDER / "reference").rglob("*.*")) <= pages.keys()


def test_a_guide_without_a_place_for_the_reference_is_refused(tmp_path: Path) -> None:
    for name in ("observers.md", "console.md"):
        (tmp_path / name).write_text((FOLDER / name).read_text().replace("<!-- console -->", ""))
    with pytest.raises(ValueError, match=r"console\.md has no markers for console"):
        reference(tmp_path)


@pytest.mark.parametrize("signature", signatures())
def test_every_hook_stands_in_the_guide_under_its_signature(signature: str) -> None:
    headings = re.findall(r"^#+ (.*)$", GUIDE, re.MULTILINE)
    assert f"`{signature}`" in headings


def test_the_guide_names_no_hook_that_is_not_there() -> None:
    known = {signature.partition("(")[0] for signature in signatures()}
    assert set(re.findall(r"\bgatewayd_\w+(?=\()", GUIDE)) <= known


@pytest.mark.parametrize("hook", [s.partition("(")[0] for s in signatures()])
def test_every_hook_says_when_it_is_called(hook: str) -> None:
    text = inspect.getdoc(getattr(hookspecs, hook)) or ""
    assert re.search(r"(Engine|Gateway|Console) process", text)


@pytest.mark.parametrize("kind", KINDS)
def test_the_guide_lists_every_method_of_every_kind(kind: Kind) -> None:
    own = {m for m in KINDS[kind].methods if m not in ("open", "close")}
    (part,) = re.findall(rf"^#+ [^\n]*`{kind}`[^\n]*\n(.*?)(?=^#+ |\Z)", GUIDE, re.M | re.S)
    # A quantizer has optional parts only, and the guide says so.
    assert own or "it implements `Reads`, `Quantizes`, or both" in part
    listed = set(re.findall(r"`(\w+)\(", part))
    assert own <= listed, f"not under the heading of {kind}: {own - listed}"
    for test in conformance_of(kind).tests:
        assert f"- {test.removeprefix('test_').replace('_', ' ')}\n" in part


@pytest.mark.parametrize("kind", KINDS)
def test_every_method_of_the_contract_has_a_docstring(kind: Kind) -> None:
    protocol = KINDS[kind].protocol
    for method in KINDS[kind].methods:
        assert inspect.getdoc(getattr(protocol, method))


@pytest.mark.parametrize("readme", READMES, ids=lambda path: path.parent.name)
def test_a_plugins_readme_has_the_five_headings(readme: Path) -> None:
    text = readme.read_text()
    assert text.startswith(f"# {readme.parent.name}\n")
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == HEADINGS
    for heading in HEADINGS:
        assert section(text, heading).strip()


@pytest.mark.parametrize("plugin", [e.plugin for e in BUILT_INS])
def test_a_readme_says_what_the_configuration_calls_it(plugin: str) -> None:
    assert f"`{plugin}`" in section(readme_of(plugin), "Name")
    # Model routers are chosen and configured by route.
    table = plugin.replace("model_router.", "routes.NAME.")
    assert f"`[{table}]`" in section(readme_of(plugin), "Configuration")


@pytest.mark.parametrize("plugin", [e.plugin for e in BUILT_INS])
def test_a_readme_lists_every_setting_with_its_default(plugin: str) -> None:
    rows = re.findall(
        r"^\| `(\w+)` \| `(.*?)` \|", section(readme_of(plugin), "Configuration"), re.M
    )
    fields = configs()[plugin].model_fields
    assert dict(rows).keys() == fields.keys()
    for name, written in rows:
        default = fields[name].default
        assert written == ("none" if default is None else str(default))


@pytest.mark.parametrize("plugin", [e.plugin for e in BUILT_INS])
def test_every_setting_says_what_it_does_and_when_it_takes_effect(plugin: str) -> None:
    for name, field in configs()[plugin].model_fields.items():
        extra = field.json_schema_extra
        assert isinstance(extra, dict), name
        assert extra["reload"] in ("hot", "restart", "secret"), name
        assert field.description, name
        assert field.description.endswith("."), name
