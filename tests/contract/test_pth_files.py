"""Malicious ``.pth`` in a plugin's wheel (as once in litellm's): never loaded."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from gatewayd_hooks.host.catalog import Catalog
from gatewayd_hooks.host.errors import LoadFailed
from gatewayd_hooks.host.loading import PluginHost
from gatewayd_hooks.strategy import Kind
from tests.contract.conftest import Install

SOURCE = """
from gatewayd_hooks.markers import hookimpl

@hookimpl
def gatewayd_schedulers():
    return []
"""


@pytest.fixture
def site(install: Install, tmp_path: Path) -> Path:
    """Where ``their-dist`` is installed."""
    install("their-dist", {"scheduler.mine": "their_module"}, {"their_module": SOURCE})
    return tmp_path / "their-dist"


def put(site: Path, **files: str) -> None:
    """Write files, and into the distribution's list of them."""
    info = next(site.glob("*.dist-info"))
    names = []
    for name, content in files.items():
        names.append(name.replace("_pth", ".pth").replace("__", "/"))
        (site / names[-1]).parent.mkdir(exist_ok=True)
        (site / names[-1]).write_text(content)
    (info / "RECORD").write_text("".join(f"{name},,\n" for name in ["their_module.py", *names]))


def reason() -> str:
    """Why it is not loaded; it has no scheduler at all."""
    with pytest.raises(LoadFailed) as failed:
        PluginHost(Catalog.installed()).info(Kind.SCHEDULER, "mine")
    return failed.value.reason


@pytest.mark.parametrize(
    "line", ["import os; os.system('x')", "# fine\nimport\tos", "/x\nimport a"]
)
def test_a_distribution_whose_files_run_code_at_every_start_is_not_loaded(
    site: Path, line: str
) -> None:
    put(site, theirs_pth=line + "\n")
    assert "installs theirs.pth, which runs code whenever a Python of this machine" in reason()
    assert "their_module" not in sys.modules


def test_what_runs_nothing_or_is_its_authors_own_is_loaded(site: Path) -> None:
    loaded = "offers nothing, not mine"
    put(site)
    assert loaded in reason()
    put(site, theirs_pth="/some/folder\nimportant/folder\n")
    assert loaded in reason()
    put(site, data__theirs_pth="import os\n")  # nobody looks there
    assert loaded in reason()
    put(site, theirs_pth="import __editable___theirs_finder\n")
    info = next(site.glob("*.dist-info"))
    url = {"url": "file:///x", "dir_info": {"editable": True}}
    (info / "direct_url.json").write_text(json.dumps(url))
    assert loaded in reason()
