"""Probing of plugins in a separate process, with advice on the problems that it finds."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from gatewayd_hooks.helpers import children
from gatewayd_hooks.host.catalog import Entry

_PROBE_SECONDS = 60
_NO_MODULE = "ModuleNotFoundError"
_ENDINGS = ("Hangs", "Crashes")


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem of a plugin.

    Attributes:
        text: description.
        advice: what to do, one sentence.
        is_broken: whether the plugin cannot be used; otherwise it is only a warning.
    """

    text: str
    advice: str
    is_broken: bool = True


def unimportable(
    entry: Entry, settings: Mapping[str, Any], search_path: str | None = None
) -> Problem | None:
    """Describe why a plugin cannot be imported, with advice; None if it can.

    Args:
        entry: the plugin.
        settings: its settings.
        search_path: ``PYTHONPATH`` of a plugin that is not installed, during its development.
    """
    found = probe(entry, settings, search_path)
    # Other errors, such as bad settings, are found again when this process loads the plugin.
    if "error" not in found or ("cause" not in found and found["error"] not in _ENDINGS):
        return None
    problem = next(faults(entry, found, is_enabled=True))
    own = entry.module.partition(":")[0].partition(".")[0]
    missing = str(found.get("missing")).partition(".")[0]
    # A project under development is corrected; another missing module is installed in any case.
    if search_path is None or (found.get("cause") == _NO_MODULE and missing != own):
        return problem
    where = found.get("where", "what runs when it is imported")
    if missing == own:
        where = f"[project.entry-points.gatewayd] in pyproject.toml, or {where}"
    return Problem(problem.text, f"correct {where}")


def probe(
    entry: Entry, settings: Mapping[str, Any], search_path: str | None = None
) -> dict[str, Any]:
    """Probe a plugin in a separate process; return its result, or how the process ended."""
    try:
        done = children.run(
            children.python("-m", "gatewayd.plugins.probe"),
            # TOML has dates, and JSON has none.
            input=json.dumps({"entry": asdict(entry), "settings": settings}, default=str),
            env=children.environment({} if search_path is None else {"PYTHONPATH": search_path}),
            capture_output=True,
            text=True,
            timeout=_PROBE_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"error": "Hangs", "reason": f"does not load within {_PROBE_SECONDS} s"}
    # The result is written at the end; without it the plugin has ended the process.
    if not done.stdout:
        status = done.returncode
        how = signal.Signals(-status).name if status < 0 else f"status {status}"
        return {"error": "Crashes", "reason": f"ends the process that loads it, with {how}"}
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def faults(entry: Entry, found: Mapping[str, Any], is_enabled: bool) -> Iterator[Problem]:
    """Convert a probe's result to problems with advice.

    Args:
        entry: the plugin.
        found: result of ``probe``.
        is_enabled: whether the configuration enables it.
    """
    error = found.get("error")
    if error is None:
        return
    reason = str(found["reason"])
    tell = f"report it to its author, and pip uninstall {entry.distribution} until then"
    if error == "BadSettings":
        if is_enabled:
            yield Problem(reason, f"correct [{entry.plugin}] in the configuration")
        else:
            advice = f"set [{entry.plugin}] before you choose it"
            yield Problem(reason, advice, is_broken=False)
    elif error == "SpecMismatch":
        yield Problem(reason, f"pip install --upgrade {entry.distribution}, or another gatewayd")
    elif found.get("cause") == _NO_MODULE and found.get("missing"):
        top = str(found["missing"]).partition(".")[0]
        if top == entry.module.partition(":")[0].partition(".")[0]:
            yield Problem(
                reason,
                f"{entry.distribution} is installed without the module that its entry point names: "
                f"pip install --force-reinstall {entry.distribution}, or report it to its author",
            )
        else:
            yield Problem(reason, f"install {top} in this environment: pip install {top}")
    elif "has no " in reason:
        yield Problem(reason, f"see gatewayd plugin test {entry.plugin}; its author must add it")
    else:
        yield Problem(reason, tell)
