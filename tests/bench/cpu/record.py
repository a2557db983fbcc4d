"""Record of a comparison: a JSON line for each measurement, from which a cut run continues."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

OURS, LLAMA, GENERATE = "ours", "llama", "generate"
CONTESTANTS = (GENERATE, OURS, LLAMA)
_SAME = ("cpu", "cores", "kind", "contestants_options")
"""What may not change within a record."""


@dataclass(frozen=True, slots=True)
class Cell:
    """Place of a measurement.

    Attributes:
        model: one of ``MODELS``.
        scheme: one of ``SCHEMES``.
        workload: name of a workload.
        load: what else ran on the machine; empty for nothing.
    """

    model: str
    scheme: str
    workload: str
    load: str = ""


class Record:
    """Measurements in a file, in the order in which they were made.

    Args:
        path: of the file, which need not exist.
        header: of a new file: machine, processor, command.

    Raises:
        ValueError: the file is of another machine, or is not a record.
    """

    def __init__(self, path: Path, header: Mapping[str, Any]) -> None:
        self._path = path
        self.header = dict(header)
        self._found: dict[tuple[Cell, str], dict[int, dict[str, float]]] = defaultdict(dict)
        if path.exists() and path.stat().st_size:
            self._read(header)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps({"header": self.header}) + "\n")

    def has(self, cell: Cell, contestant: str, turn: int) -> bool:
        """Whether a round of a contestant has been measured."""
        return turn in self._found[cell, contestant]

    def add(self, cell: Cell, contestant: str, turn: int, figures: Mapping[str, float]) -> None:
        """Keep a measurement, in the file too."""
        line = {**asdict(cell), "contestant": contestant, "round": turn, "figures": {**figures}}
        with self._path.open("a") as file:
            file.write(json.dumps(line) + "\n")
        self._found[cell, contestant][turn] = dict(figures)

    def cells(self) -> Iterator[Cell]:
        """Cells with a measurement, in the order of the first one."""
        yield from dict.fromkeys(cell for (cell, _), rounds in self._found.items() if rounds)

    def rounds(self, cell: Cell, contestant: str) -> dict[int, dict[str, float]]:
        """The figures of each round of a contestant."""
        return self._found[cell, contestant]

    def _read(self, header: Mapping[str, Any]) -> None:
        text = self._path.read_text()
        lines = text.splitlines()
        try:
            self.header = dict(json.loads(lines[0])["header"])
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{self._path} is no record of this benchmark") from error
        for name in _SAME:
            before, now = self.header.get(name), header.get(name)
            if before != now:
                raise ValueError(
                    f"{self._path} was begun with {name} {before!r}, and this is {now!r};"
                    " give another --record"
                )
        if not text.endswith("\n"):
            # Cut while it was written.
            self._path.write_text(text[: text.rindex("\n") + 1])
            lines.pop()
        for number, line in enumerate(lines[1:], 2):
            try:
                values = json.loads(line)
                contestant, turn = values.pop("contestant"), values.pop("round")
                figures = values.pop("figures")
                self._found[Cell(**values), contestant][turn] = figures
            except (ValueError, KeyError, TypeError) as error:
                raise ValueError(f"{self._path}, line {number} is no measurement") from error
