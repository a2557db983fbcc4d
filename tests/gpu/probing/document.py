"""What the probe leaves: ``probe.json``, which several processes continue one after another."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

NAME = "probe.json"
Row = dict[str, Any]
Where = dict[str, Any]


class Document:
    """Rows, and what became of the parts; imports no torch, since the parent reads it as well.

    Args:
        out: its folder; None for no file.
        machine: chip, versions and date; those of an earlier process are kept.
        goes_on: whether an earlier process has begun it.

    Attributes:
        made: see ``probe.json``.
    """

    def __init__(self, out: Path | None, machine: dict[str, Any], *, goes_on: bool) -> None:
        self._path = None if out is None else out / NAME
        self._began = time.monotonic()
        empty = ("rows", "left_out", "failed", "lost", "done")
        self.made: dict[str, Any] = {**machine, **{name: [] for name in empty}, "part": None}
        self.made["seconds"] = 0.0
        if goes_on and out is not None and (found := read(out)) is not None:
            self.made = found
        self._before = float(self.made["seconds"])
        self._known = {_key(row, row["name"]): row for row in self.made["rows"]}
        lost = (row for row in self.made["rows"] if row.get("lost"))
        self._fatal = {(row["place"], row["name"]) for row in lost}

    def begin(self, part: str) -> None:
        """So that the parent knows in which part a process ended."""
        self.made["part"] = part
        self.write()

    def end(self, part: str) -> None:
        """It is not begun again, whatever became of its rows."""
        self.made["done"].append(part)
        self.made["part"] = None

    def row(self, where: Where, name: str) -> Row:
        """A new row; written at once, since a process that dies in it cannot say so."""
        made = {**where, "name": name}
        self.made["rows"].append(made)
        self.write()
        return made

    def known(self, where: Where, name: str) -> Row | None:
        """The same row, if an earlier process has come to it."""
        return self._known.get(_key(where, name))

    def is_fatal(self, where: Where, name: str) -> bool:
        """Whether the device was lost to this kernel, perhaps on another size."""
        return (where["place"], name) in self._fatal

    def write(self) -> None:
        """All of it; in one line, which takes no time."""
        self.made["seconds"] = round(self._before + time.monotonic() - self._began, 1)
        if self._path is not None:
            write(self._path.parent, self.made)


def read(folder: Path) -> dict[str, Any] | None:
    """What is there; None if nothing was written."""
    try:
        made: dict[str, Any] = json.loads((folder / NAME).read_text("utf-8"))
    except FileNotFoundError:
        return None
    return made


def write(folder: Path, made: dict[str, Any], indent: int | None = None) -> None:
    """In one step: a process that is killed leaves the document as it was before."""
    folder.mkdir(parents=True, exist_ok=True)
    new = folder / f"{NAME}.new"
    new.write_text(json.dumps(made, indent=indent) + "\n", "utf-8")
    new.replace(folder / NAME)


def _key(where: Where, name: str) -> tuple[Any, ...]:
    sizes = (where.get(size) for size in ("place", "lines", "context", "width"))
    return (*sizes, name)
