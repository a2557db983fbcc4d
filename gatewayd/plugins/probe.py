"""Probe of one plugin: loads it in a separate process and reports the result.

``python -m gatewayd.plugins.probe`` reads a plugin and its settings from standard input and
writes the result to standard output, both as JSON. A plugin that hangs, prints, exits or crashes
does not affect the calling process.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from typing import Any

from gatewayd.plugins.imports import imports_outside_contract
from gatewayd_hooks.host.catalog import Catalog, Entry
from gatewayd_hooks.host.errors import PluginError
from gatewayd_hooks.host.kinds import KINDS
from gatewayd_hooks.host.loading import PluginHost
from gatewayd_hooks.strategy import Kind

HEAVY = ("torch", "numpy", "transformers")
"""Slow imports, which belong into the function that builds the strategy."""


def examine(entry: Entry, settings: dict[str, Any]) -> dict[str, Any]:
    """Import, register and build a plugin.

    Returns:
        ``import_ms``; ``heavy``, slow modules that it imports; ``requires_spec``; ``strange``,
        see ``imports_outside_contract``; ``error`` and ``reason``, if it cannot be used; ``cause``,
        the underlying exception; ``where``, the file and line that raised it.
    """
    found: dict[str, Any] = {"strange": imports_outside_contract(entry.module)}
    before = set(sys.modules)
    began = time.perf_counter()
    try:
        # Without the host at first, which turns an exception into a sentence and loses its
        # location.
        entry.load()
    except BaseException as error:  # noqa: BLE001 - reported again by the host, with a reason
        found |= _cause_of(error)
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
            found |= _cause_of(error.__cause__)
    return found


def _cause_of(error: BaseException) -> dict[str, Any]:
    """The exception that prevented the import, and its location."""
    if isinstance(error, SyntaxError):
        where = f"{error.filename}:{error.lineno}"
    else:
        # Frames of the import system have names such as ``<frozen importlib._bootstrap>``.
        frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename[0] != "<"]
        where = f"{frames[-1].filename}:{frames[-1].lineno}"
    return {
        "cause": type(error).__name__,
        "missing": getattr(error, "name", None),
        "where": where,
    }


def main() -> None:
    """Write the result to the original standard output; output of the plugin goes to stderr."""
    answer = os.dup(1)
    os.dup2(2, 1)
    asked = json.load(sys.stdin)
    found = examine(Entry(**asked["entry"]), asked["settings"])
    with os.fdopen(answer, "w", encoding="utf-8") as stream:
        json.dump(found, stream)
    # Threads started by the plugin must not keep the process alive.
    os._exit(0)


if __name__ == "__main__":
    main()
