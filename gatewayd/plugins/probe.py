"""Loads one plugin in a process of its own and says what came of it.

``python -m gatewayd.plugins.probe`` reads a plugin and its settings from standard input and
writes what it found to standard output, both as JSON. Whatever a plugin does, hang, print, exit
or crash, it does not do it to whoever asks.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from typing import Any

from gatewayd.plugins.imports import strange_imports
from gatewayd_hooks.host.catalog import Catalog, Entry
from gatewayd_hooks.host.errors import PluginError
from gatewayd_hooks.host.kinds import KINDS
from gatewayd_hooks.host.loading import PluginHost
from gatewayd_hooks.strategy import Kind

HEAVY = ("torch", "numpy", "transformers")
"""What takes long to import and belongs into the function that builds."""


def examine(entry: Entry, settings: dict[str, Any]) -> dict[str, Any]:
    """Import, register and build a plugin.

    Returns:
        ``import_ms``; ``heavy``, what its import brought along; ``requires_spec``; ``strange``,
        as ``strange_imports`` says; ``error`` and ``reason``, if it cannot be used; ``cause``,
        the exception behind it; ``where``, the file and line that raised it.
    """
    found: dict[str, Any] = {"strange": strange_imports(entry.module)}
    before = set(sys.modules)
    began = time.perf_counter()
    try:
        entry.load()
    except BaseException as error:  # noqa: BLE001 - told again by the host, with a reason
        found |= _behind(error)
    found["import_ms"] = round((time.perf_counter() - began) * 1000, 1)
    found["heavy"] = [name for name in HEAVY if name in set(sys.modules) - before]
    host, kind = PluginHost(Catalog([entry])), Kind(entry.kind)
    try:
        if kind in KINDS:
            found["requires_spec"] = host.info(kind, entry.name).requires_spec
            host.strategy(kind, entry.name, settings)
        for failure in host.hooked(kind, [] if kind in KINDS else [entry.name]):
            found |= {"error": "LoadFailed", "reason": failure.reason}
    except PluginError as error:
        found |= {"error": type(error).__name__, "reason": error.reason}
        if isinstance(error.__cause__, ImportError | SyntaxError):
            found |= _behind(error.__cause__)
    return found


def _behind(error: BaseException) -> dict[str, Any]:
    """What kept it from being imported, and where."""
    if isinstance(error, SyntaxError):
        where = f"{error.filename}:{error.lineno}"
    else:
        frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename[0] != "<"]
        where = f"{frames[-1].filename}:{frames[-1].lineno}"
    return {
        "cause": type(error).__name__,
        "missing": getattr(error, "name", None),
        "where": where,
    }


def main() -> None:
    """Answer on what was standard output; what the plugin prints goes elsewhere."""
    answer = os.dup(1)
    os.dup2(2, 1)
    asked = json.load(sys.stdin)
    found = examine(Entry(**asked["entry"]), asked["settings"])
    with os.fdopen(answer, "w", encoding="utf-8") as stream:
        json.dump(found, stream)
    # Threads that a plugin has started must not keep the process.
    os._exit(0)


if __name__ == "__main__":
    main()
