"""Standalone library: imports nothing else, under both of its names."""

from __future__ import annotations

import subprocess
import sys

import gatewayd.lang
import gatewayd_lang

FOREIGN = ("gatewayd", "gatewayd_engine", "gatewayd_hooks", "torch", "numpy", "msgspec", "pydantic")


def imported_by(module: str) -> set[str]:
    """What a fresh process has after importing a module."""
    code = f"import sys, {module}; print(*sys.modules)"
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    return set(run.stdout.split())


def test_it_imports_nothing_of_the_project_and_nothing_heavy() -> None:
    imported = imported_by("gatewayd_lang")
    assert {"gatewayd_lang.state", "aiohttp"} <= imported
    assert imported.isdisjoint(FOREIGN)


def test_under_the_daemons_name_it_brings_no_more_of_the_daemon() -> None:
    ours = {name for name in imported_by("gatewayd.lang") if name.split(".")[0] == "gatewayd"}
    assert ours == {"gatewayd", "gatewayd.lang"}


def test_both_names_have_the_same() -> None:
    assert gatewayd.lang.__all__ == gatewayd_lang.__all__
    assert all(
        getattr(gatewayd.lang, name) is getattr(gatewayd_lang, name)
        for name in gatewayd_lang.__all__
    )
