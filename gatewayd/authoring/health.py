"""Examines plugins, each in a process of its own, and says what to do about what is wrong."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

from gatewayd.cores import available_cores
from gatewayd_hooks import children
from gatewayd_hooks.catalog import Catalog, Entry
from gatewayd_hooks.errors import nearest
from gatewayd_hooks.strategy import Kind

SLOW_IMPORT_MS = 500
_PROBE_SECONDS = 60
_NO_MODULE = "ModuleNotFoundError"
_ENDINGS = ("Hangs", "Crashes")
_LISTS: Mapping[str, str] = {
    Kind.OBSERVER: "[plugins] observers",
    Kind.CONSOLE: "[plugins] console",
}
"""Where kinds without a table are chosen."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that is not well.

    Attributes:
        text: what it is.
        advice: what to do, one sentence.
        is_broken: whether the plugin cannot be used; if not, it only should not be so.
    """

    text: str
    advice: str
    is_broken: bool = True


@dataclass(frozen=True, slots=True)
class Checkup:
    """What is to be said of one plugin.

    Attributes:
        plugin: ``<kind>.<name>``.
        distribution: it came in; empty for one that is not installed.
        version: of the distribution.
        is_enabled: whether the configuration chooses it.
        requires_spec: the contract versions it asks for; empty where it has not said.
        import_ms: milliseconds that its import adds to a process; None if it has not ended.
        problems: all that was found.
    """

    plugin: str
    distribution: str
    version: str
    is_enabled: bool
    requires_spec: str
    import_ms: float | None
    problems: tuple[Problem, ...]

    @property
    def state(self) -> str:
        """``ok``, ``warning`` or ``failure``."""
        if any(problem.is_broken for problem in self.problems):
            return "failure"
        return "warning" if self.problems else "ok"


def check(
    catalog: Catalog,
    enabled: Iterable[str],
    settings: Mapping[str, Mapping[str, Any]],
    only: Collection[str] | None = None,
) -> list[Checkup]:
    """Examine everything that is installed, and everything that is enabled and is not.

    Args:
        catalog: what is installed.
        enabled: what the configuration chooses, ``<kind>.<name>``.
        settings: of each plugin; none where it is missing.
        only: plugins to examine; all if there are none.
    """
    chosen = set(enabled)
    missing = sorted(chosen - {entry.plugin for entry in catalog.entries})
    entries = catalog.entries
    if only:
        missing = [plugin for plugin in missing if plugin in only]
        entries = tuple(entry for entry in entries if entry.plugin in only)
    with ThreadPoolExecutor(available_cores()) as pool:
        checkups = pool.map(
            lambda entry: _examine(entry, catalog, chosen, settings.get(entry.plugin, {})),
            entries,
        )
        return [*(_absent(plugin, catalog) for plugin in missing), *checkups]


def unimportable(
    entry: Entry, settings: Mapping[str, Any], search_path: str | None = None
) -> Problem | None:
    """Why a plugin cannot be imported, and what to do; None if it can.

    Args:
        entry: the plugin.
        settings: of it.
        search_path: for ``PYTHONPATH``, where it is not installed; then its author is asking.
    """
    found = _probe(entry, settings, search_path)
    if "error" not in found or ("cause" not in found and found["error"] not in _ENDINGS):
        return None
    problem = next(_faults(entry, found, is_enabled=True))
    own = entry.module.partition(":")[0].partition(".")[0]
    missing = str(found.get("missing")).partition(".")[0]
    if search_path is None or (found.get("cause") == _NO_MODULE and missing != own):
        return problem
    where = found.get("where", "what runs when it is imported")
    if missing == own:
        where = f"[project.entry-points.gatewayd] in pyproject.toml, or {where}"
    return Problem(problem.text, f"correct {where}")


def _absent(plugin: str, catalog: Catalog) -> Checkup:
    kind, _, _ = plugin.partition(".")
    names = [entry.plugin for entry in catalog.entries if entry.kind == kind]
    near = nearest(plugin, names)
    table = _LISTS.get(kind, f"[{kind}]")
    advice = f"write {near.partition('.')[2] if near else 'another'} in {table}"
    problem = Problem(
        "the configuration names it, and it is not installed",
        f"install the package that offers it, or {advice}",
    )
    return Checkup(plugin, "", "", True, "", None, (problem,))


def _examine(
    entry: Entry, catalog: Catalog, chosen: set[str], settings: Mapping[str, Any]
) -> Checkup:
    is_enabled = entry.plugin in chosen
    if not entry.is_known:
        near = nearest(entry.kind, list(Kind))
        hint = f"its author may have meant {near}" if near else "a later gatewayd may have it"
        problem = Problem(
            f"this gatewayd has no kind {entry.kind}",
            f"{hint}; until then it does no harm",
            is_broken=False,
        )
        return Checkup(
            entry.plugin, entry.distribution, entry.version, is_enabled, "", None, (problem,)
        )
    found = _probe(entry, settings)
    problems = [*_conflicts(entry, catalog), *_faults(entry, found, is_enabled), *_manners(found)]
    return Checkup(
        entry.plugin,
        entry.distribution,
        entry.version,
        is_enabled,
        found.get("requires_spec", ""),
        found.get("import_ms"),
        tuple(problems),
    )


def _probe(
    entry: Entry, settings: Mapping[str, Any], search_path: str | None = None
) -> dict[str, Any]:
    """What ``probe`` finds, or how it ended without an answer."""
    try:
        done = children.run(
            children.python("-m", "gatewayd.authoring.probe"),
            input=json.dumps({"entry": asdict(entry), "settings": settings}, default=str),
            env=children.environment({} if search_path is None else {"PYTHONPATH": search_path}),
            capture_output=True,
            text=True,
            timeout=_PROBE_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"error": "Hangs", "reason": f"does not load within {_PROBE_SECONDS} s"}
    if not done.stdout:
        status = done.returncode
        how = signal.Signals(-status).name if status < 0 else f"status {status}"
        return {"error": "Crashes", "reason": f"ends the process that loads it, with {how}"}
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _conflicts(entry: Entry, catalog: Catalog) -> Iterator[Problem]:
    others = [owner for owner in catalog.owners(entry.kind, entry.name) if owner is not entry]
    if others:
        names = " and ".join(dict.fromkeys(owner.owner for owner in others))
        yield Problem(
            f"also offered by {names}, so neither can be chosen",
            f"keep one: pip uninstall {entry.distribution}, or the other",
        )


def _faults(entry: Entry, found: Mapping[str, Any], is_enabled: bool) -> Iterator[Problem]:
    """What keeps it from being used, and the way out."""
    error = found.get("error")
    if error is None:
        return
    reason = str(found["reason"])
    tell = f"tell its author, and pip uninstall {entry.distribution} until then"
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
                f"pip install --force-reinstall {entry.distribution}, or tell its author",
            )
        else:
            yield Problem(reason, f"install {top} in this environment: pip install {top}")
    elif "has no " in reason:
        yield Problem(reason, f"see gatewayd plugin test {entry.plugin}; its author must add it")
    else:
        yield Problem(reason, tell)


def _manners(found: Mapping[str, Any]) -> Iterator[Problem]:
    """What works today and should not be so."""
    if strange := found.get("strange"):
        more = f" and {len(strange) - 1} more" if len(strange) > 1 else ""
        yield Problem(
            f"{strange[0]}{more}",
            "a plugin may import gatewayd_hooks alone: all else changes without notice",
            is_broken=False,
        )
    slow = (found.get("import_ms") or 0) > SLOW_IMPORT_MS
    if slow or "torch" in found.get("heavy", ()):
        brought = f" with {', '.join(found['heavy'])}" if found.get("heavy") else ""
        yield Problem(
            f"its import takes {found['import_ms']:.0f} ms{brought}",
            "its author should import what is heavy where the strategy is built",
            is_broken=False,
        )
