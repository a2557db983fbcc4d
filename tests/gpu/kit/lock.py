"""Pinned packages of ``etc/lock``, read."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[3]
LOCKS = (ROOT / "etc/lock/gatewayd.txt", ROOT / "etc/lock/gpu.txt")
FLASHINFER = "flashinfer-python"
_PINNED = re.compile(r"([a-z0-9-]+)==(\S+)( ;.*)? \\\n((?:    --hash=\S+(?: \\)?\n?)+)")


class Pinned(NamedTuple):
    """One package of a lock."""

    name: str
    version: str
    requirement: str
    """With all hashes, as pip reads it."""


def pinned(files: Iterable[Path] = LOCKS) -> dict[str, Pinned]:
    """Packages by name; those that depend on the platform are left out."""
    found = {}
    for file in files:
        for match in _PINNED.finditer(file.read_text("utf-8")):
            name, version, marker, _ = match.groups()
            if not marker:
                found[name] = Pinned(name, version, match[0])
    return found


def names(file: Path, more: str = "") -> list[str]:
    """The lines of a list without its comments, and names that are added."""
    lines = file.read_text("utf-8").splitlines()
    return [*(line for line in lines if line and not line.startswith("#")), *more.split()]
