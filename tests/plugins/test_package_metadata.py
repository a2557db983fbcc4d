"""Package metadata of built-ins: hook, name, settings, README."""

import importlib
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pluggy
import pytest

from gatewayd_hooks import hookspecs
from gatewayd_hooks.markers import PROJECT

ROOT = Path(__file__).parents[2]
ENTRY_POINTS: dict[str, str] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
    "entry-points"
]["gatewayd"]
NEEDED: dict[str, dict[str, str]] = {"logits_processor.watermark": {"secret": "s" * 16}}
"""Settings without which a strategy does not start."""
HEADINGS = ["Name", "Description", "Configuration", "Metrics", "Example"]


def offers(module: str) -> list[Any]:
    """All that a package's hooks return."""
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(hookspecs)
    manager.register(importlib.import_module(module))
    manager.check_pending()
    plugin = manager.get_plugins().pop()
    return [
        info
        for caller in manager.get_hookcallers(plugin) or []
        for infos in caller()
        for info in infos
    ]


@pytest.mark.parametrize(("entry", "module"), ENTRY_POINTS.items())
def test_a_package_offers_the_one_strategy_its_entry_point_names(entry: str, module: str) -> None:
    (info,) = offers(module)
    assert info.name == entry.partition(".")[2]
    assert info.summary
    strategy = info.build(info.config_type(**NEEDED.get(entry, {})))
    strategy.close()


@pytest.mark.parametrize(("entry", "module"), ENTRY_POINTS.items())
def test_a_readme_has_the_five_headings_and_every_setting(entry: str, module: str) -> None:
    text = (ROOT / "plugins" / module / "README.md").read_text()
    lines = text.splitlines()
    assert lines[0] == f"# {module}"
    assert [line[3:] for line in lines if line.startswith("## ")] == HEADINGS
    assert f"`{entry}`" in text
    (info,) = offers(module)
    for name, field in info.config_type.model_fields.items():
        assert f"| `{name}` | `{field.default}` |" in text


_IMPORTS = """
import importlib, os, sys
import gatewayd_hooks.hookspecs  # what all of them import
heavy = {"torch", "numpy", "hypothesis"}
for module in sys.argv[1:]:
    if os.fork() == 0:
        importlib.import_module(module)
        print(module, *heavy & {name.partition(".")[0] for name in sys.modules}, flush=True)
        os._exit(0)
    os.wait()
"""


def test_importing_a_package_imports_neither_torch_nor_numpy() -> None:
    output = subprocess.run(
        [sys.executable, "-c", _IMPORTS, *ENTRY_POINTS.values()],
        env={"PYTHONPATH": str(ROOT / "plugins"), "PATH": ""},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert output.splitlines() == list(ENTRY_POINTS.values())
