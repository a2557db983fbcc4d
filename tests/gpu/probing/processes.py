"""Measures in processes of their own, since a lost device is lost to the process that has it."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.gpu.probing.document import NAME, read, write

_START = 30.0
"""Seconds that a process may take beyond its time, most of them for its imports."""
_SILENT = 45.0
"""Seconds without a new row after which a kernel is taken to hang."""
_LOOKS = 0.2
LOST = 3
"""Status of a process that has noted to which row the device was lost."""


class Processes:
    """One process for all parts, unless it dies; then another for those that it has left.

    The part in which it died comes last, and row by row, so that the row is known that takes the
    device down. The next process leaves that kernel out.

    Args:
        command: with its options starts such a process.
        out: folder of ``probe.json``.
        patience: how often the seconds above are waited for.
    """

    def __init__(self, command: Sequence[str], out: Path, patience: float = 1.0) -> None:
        self._command, self._out, self._patience = command, out, patience

    def measure(self, parts: Sequence[str], seconds: float) -> int:
        """All parts; says what failed.

        Returns:
            1 if a row failed or differs or the device was lost, and the status of a process that
            did not come to its first part.
        """
        (self._out / NAME).unlink(missing_ok=True)
        until, todo, singly = time.monotonic() + seconds, list(parts), list[str]()
        while todo and (left := until - time.monotonic()) > 0:
            options = ["--parts", ",".join(todo), "--singly", ",".join(singly)]
            options += ["--seconds", f"{left:.1f}", "--child"]
            options += ["--goes-on"] if (self._out / NAME).exists() else []
            begun = len((read(self._out) or {"rows": []})["rows"])
            code, why = self._process(options, left)
            made = read(self._out)
            if made is None:
                return code if code > 0 else 1
            todo = [part for part in todo if part not in made["done"]]
            if not todo:
                break
            part = made["part"]
            if part is None:  # no process can begin any more
                made["lost"].append(f"no part was begun: {why}")
                write(self._out, made)
                break
            is_named = _mourn(made, part, begun, code, why)
            write(self._out, made)
            print(f"{part}: {made['lost'][-1]}; the rest in a new process", flush=True)
            todo.remove(part)
            if is_named or part not in singly:
                todo.append(part)
                singly = [*(other for other in singly if other != part), part]
            else:
                made["left_out"].append(f"{part}: what no process survives")
                write(self._out, made)
        return self._say(todo)

    def _process(self, options: list[str], seconds: float) -> tuple[int, str]:
        """Its status, and why it ended."""
        child = subprocess.Popen([*self._command, *options])
        began, heard, written, why = time.monotonic(), None, self._written(), ""
        try:
            while child.poll() is None and not why:
                time.sleep(_LOOKS)
                now = time.monotonic()
                if (new := self._written()) != written:
                    written, heard = new, now
                if now > began + seconds + _START * self._patience:
                    why = "it was still busy when all time was over"
                elif heard is not None and now > heard + _SILENT * self._patience:
                    why = f"nothing came of it for {_SILENT * self._patience:.0f} s"
        finally:
            child.kill()  # no harm once it has ended
            child.wait()
        return child.returncode, why or f"its process ended with {child.returncode}"

    def _written(self) -> int:
        try:
            return (self._out / NAME).stat().st_mtime_ns
        except FileNotFoundError:
            return 0

    def _say(self, todo: list[str]) -> int:
        made = read(self._out)
        if made is None:
            return 1
        made["left_out"] += [f"{part}: no time for another process" for part in todo]
        del made["part"], made["done"]
        write(self._out, made, indent=1)
        for title, lines in (("lost:", made["lost"]), ("failed or different:", made["failed"])):
            if lines:
                print("\n".join([title, *lines]), flush=True)
        return 1 if made["failed"] or made["lost"] else 0


def _mourn(made: dict[str, Any], part: str, begun: int, code: int, why: str) -> bool:
    """Note what the process that died could not; whether the row is known that it died in."""
    last = made["rows"][-1] if len(made["rows"]) > begun else {}
    made["part"] = None
    if code == LOST:
        return bool(last.get("lost"))
    is_named = bool(last) and not last.keys() & {"microseconds", "absent", "error", "left_out"}
    if is_named:
        last |= {"error": why, "lost": True}
        made["failed"].append(f"{last['place']}, {last['name']}: {why}")
    at = f"{part}, {last['name']}" if is_named else part
    made["lost"].append(f"{at}: {why}")
    return is_named
