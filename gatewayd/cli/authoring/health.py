"""Health checks of plugins, each in its own process, with advice for every problem."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from gatewayd.plugins.probe_process import Problem, faults, probe
from gatewayd.runtime.cpu_count import available_cores
from gatewayd_hooks.host.catalog import Catalog, Entry
from gatewayd_hooks.host.errors import nearest
from gatewayd_hooks.strategy import Kind

SLOW_IMPORT_MS = 500
_LISTS: Mapping[str, str] = {
    Kind.OBSERVER: "[plugins] observers",
    Kind.CONSOLE: "[plugins] console",
    Kind.MODEL_ROUTER: "[routes.NAME]",
}
"""Configuration keys that enable plugins of kinds without a table."""


@dataclass(frozen=True, slots=True)
class PluginHealth:
    """Result of examining one plugin.

    Attributes:
        plugin: ``<kind>.<name>``.
        distribution: its distribution; empty if it is not installed.
        version: of the distribution.
        is_enabled: whether the configuration enables it.
        requires_spec: required contract versions; empty if it declares none.
        import_ms: import time in milliseconds; None if the import did not finish.
        problems: all problems found.
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
) -> list[PluginHealth]:
    """Examine all installed plugins, and report enabled ones that are not installed.

    Args:
        catalog: of installed plugins.
        enabled: plugins that the configuration enables, ``<kind>.<name>``.
        settings: of each plugin; defaults for missing ones.
        only: plugins to examine; all if empty.
    """
    chosen = set(enabled)
    missing = sorted(chosen - {entry.plugin for entry in catalog.entries})
    entries = catalog.entries
    if only:
        missing = [plugin for plugin in missing if plugin in only]
        entries = tuple(entry for entry in entries if entry.plugin in only)
    # Threads are enough: each waits for a child process.
    with ThreadPoolExecutor(available_cores()) as pool:
        checkups = pool.map(
            lambda entry: _examine(entry, catalog, chosen, settings.get(entry.plugin, {})),
            entries,
        )
        return [*(_absent(plugin, catalog) for plugin in missing), *checkups]


def _absent(plugin: str, catalog: Catalog) -> PluginHealth:
    kind, _, _ = plugin.partition(".")
    names = [entry.plugin for entry in catalog.entries if entry.kind == kind]
    near = nearest(plugin, names)
    table = _LISTS.get(kind, f"[{kind}]")
    advice = f"write {near.partition('.')[2] if near else 'another'} in {table}"
    problem = Problem(
        "the configuration names it, but it is not installed",
        f"install the package that provides it, or {advice}",
    )
    return PluginHealth(plugin, "", "", True, "", None, (problem,))


def _examine(
    entry: Entry, catalog: Catalog, chosen: set[str], settings: Mapping[str, Any]
) -> PluginHealth:
    is_enabled = entry.plugin in chosen
    if not entry.is_known:
        near = nearest(entry.kind, list(Kind))
        hint = (
            f"its author may have meant the kind {near}" if near else "it may need a later gatewayd"
        )
        problem = Problem(
            f"this gatewayd has no plugin kind {entry.kind}",
            f"{hint}; the plugin is ignored",
            is_broken=False,
        )
        return PluginHealth(
            entry.plugin, entry.distribution, entry.version, is_enabled, "", None, (problem,)
        )
    found = probe(entry, settings)
    problems = [
        *_conflicts(entry, catalog),
        *faults(entry, found, is_enabled),
        *_style_problems(found),
    ]
    return PluginHealth(
        entry.plugin,
        entry.distribution,
        entry.version,
        is_enabled,
        found.get("requires_spec", ""),
        found.get("import_ms"),
        tuple(problems),
    )


def _conflicts(entry: Entry, catalog: Catalog) -> Iterator[Problem]:
    others = [owner for owner in catalog.owners(entry.kind, entry.name) if owner is not entry]
    if others:
        names = " and ".join(dict.fromkeys(owner.owner for owner in others))
        yield Problem(
            f"also offered by {names}, so neither can be used",
            f"keep one: pip uninstall {entry.distribution}, or the other",
        )


def _style_problems(found: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield problems that do not break the plugin: private imports, slow imports."""
    if strange := found.get("strange"):
        more = f" and {len(strange) - 1} more" if len(strange) > 1 else ""
        yield Problem(
            f"{strange[0]}{more}",
            "plugins may import only gatewayd_hooks: other modules change without notice",
            is_broken=False,
        )
    slow = (found.get("import_ms") or 0) > SLOW_IMPORT_MS
    if slow or "torch" in found.get("heavy", ()):
        heavy = f" with {', '.join(found['heavy'])}" if found.get("heavy") else ""
        yield Problem(
            f"its import takes {found['import_ms']:.0f} ms{heavy}",
            "import heavy modules when the strategy is built, not at module level",
            is_broken=False,
        )
