"""Fixtures: temporary distributions on ``sys.path``, with code and metadata."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Protocol

import pytest


class Install(Protocol):
    """Install a distribution."""

    def __call__(
        self,
        name: str,
        entries: Mapping[str, str],
        modules: Mapping[str, str] | None = None,
        version: str = "1.0",
    ) -> None:
        """Write it and put it on the path.

        Args:
            name: of the distribution.
            entries: entry points of group ``gatewayd``, name to module.
            modules: path of a module without its suffix, to source.
            version: of the distribution.
        """


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Install distributions that are gone after the test."""
    written: list[str] = []

    def install_(
        name: str,
        entries: Mapping[str, str],
        modules: Mapping[str, str] | None = None,
        version: str = "1.0",
    ) -> None:
        site = tmp_path / name
        info = site / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        lines = [f"{key} = {value}" for key, value in entries.items()]
        (info / "entry_points.txt").write_text("\n".join(["[gatewayd]", *lines, ""]))
        for module, source in (modules or {}).items():
            file = site / f"{module}.py"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(source)
            written.append(module.partition("/")[0])
        monkeypatch.syspath_prepend(site)

    yield install_
    for name in [name for name in sys.modules if name.partition(".")[0] in written]:
        del sys.modules[name]


@pytest.fixture
def install_mine(install: Install) -> Callable[[str], None]:
    """Install ``scheduler.mine`` with a given source."""

    def install_(source: str) -> None:
        install("their-dist", {"scheduler.mine": "their_module"}, {"their_module": source})

    return install_
