"""Plugin imports: listing and choosing are cheap, heavy modules load on use."""

from __future__ import annotations

import pkgutil
import subprocess
import sys
from collections.abc import Iterable

import pytest

import gatewayd_hooks
from gatewayd_hooks.host.catalog import Catalog

HEAVY = ("torch", "numpy", "hypothesis", "starlette", "sqlalchemy", "transformers", "safetensors")
KIT = "gatewayd_hooks.testing"
CONTRACT = [
    module.name
    for module in pkgutil.walk_packages(gatewayd_hooks.__path__, "gatewayd_hooks.")
    if not module.name.startswith(KIT)
]


def heavy_after_importing(modules: Iterable[str]) -> list[str]:
    """Which heavy packages a fresh process has after importing modules."""
    lines = [f"import {module}" for module in modules]
    code = "\n".join(["import sys", *lines, f"print(*(m for m in {HEAVY} if m in sys.modules))"])
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    return run.stdout.split()


def test_the_probe_sees_what_is_imported() -> None:
    assert heavy_after_importing(["numpy"]) == ["numpy"]


def test_the_contract_imports_nothing_heavy() -> None:
    assert len(CONTRACT) >= 60
    assert heavy_after_importing(["gatewayd_hooks", *CONTRACT]) == []


def test_the_fixtures_that_every_pytest_run_loads_import_nothing_heavy() -> None:
    assert heavy_after_importing(["gatewayd_hooks.testing", "gatewayd_hooks.testing.plugin"]) == []


def test_no_built_in_imports_anything_heavy_at_its_top() -> None:
    own = [
        entry.module for entry in Catalog.installed().entries if entry.distribution == "gatewayd"
    ]
    assert len(own) >= 11
    assert heavy_after_importing(own) == []


@pytest.mark.parametrize("kind", ["scheduler", "router"])
def test_listing_what_is_installed_imports_no_plugin(kind: str) -> None:
    code = (
        "import sys; from gatewayd_hooks.host.catalog import Catalog\n"
        f"modules = [e.module for e in Catalog.installed().entries if e.kind == {kind!r}]\n"
        "assert len(modules) >= 2\n"
        "print(*(m for m in modules if m in sys.modules))"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert run.stdout.split() == []
