"""Loads configured plugins, one at a time, with faults isolated.

Both processes use it. Plugins that are not configured are never imported; any exception becomes a
``PluginError`` with a reason.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pluggy
from packaging.specifiers import SpecifierSet

from gatewayd_hooks import hookspecs
from gatewayd_hooks.detection import Detector
from gatewayd_hooks.host.catalog import Catalog, Entry
from gatewayd_hooks.host.errors import (
    LoadFailed,
    PluginError,
    SpecMismatch,
    describe_error,
    nearest,
)
from gatewayd_hooks.host.kinds import KINDS
from gatewayd_hooks.host.plugin_rows import LoadFailure, PluginRow, row_of
from gatewayd_hooks.host.settings import decode
from gatewayd_hooks.host.startup_files import startup_file
from gatewayd_hooks.markers import PROJECT
from gatewayd_hooks.strategy import Kind, StrategyInfo
from gatewayd_hooks.version import SPEC_VERSION

__all__ = ["LoadFailure", "PluginError", "PluginHost", "PluginRow"]


class PluginHost:
    """Plugins of one process; thread-safe.

    Threads do not wait for each other's plugins, except to import the same one.

    Args:
        catalog: installed plugins.
        telltale: called with the plugin that is about to be loaded, and with an empty name
            afterwards.
    """

    def __init__(
        self, catalog: Catalog, telltale: Callable[[str], None] = lambda plugin: None
    ) -> None:
        self._catalog = catalog
        self._telltale = telltale
        self._hooks = pluggy.PluginManager(PROJECT)
        self._hooks.add_hookspecs(hookspecs)
        self._plugins: dict[str, Any] = {}
        self._lock = threading.Lock()  # protects the two above
        self._enabled: set[Entry] = set()
        self._summaries: dict[Entry, str] = {}
        self._failures: dict[Entry, str] = {}

    @property
    def hook(self) -> pluggy.HookRelay:
        """Relay that calls a hook of every loaded plugin; exceptions of plugins propagate."""
        return self._hooks.hook

    def listeners(self, hook: str) -> dict[str, pluggy.HookCaller]:
        """Return a caller for each loaded plugin that implements a hook, by its module.

        With separate callers, an exception of one plugin does not keep the hook from the others.
        """
        with self._lock:
            plugins = dict(self._plugins)
        callers = {module: self._caller(hook, plugin) for module, plugin in plugins.items()}
        return {module: caller for module, caller in callers.items() if caller.get_hookimpls()}

    def info(self, kind: Kind, name: str) -> StrategyInfo[Any]:
        """Load a plugin and return what it provides under its name.

        Raises:
            PluginError: it is not installed, or cannot be loaded.
        """
        entry = self._catalog.find(kind, name)
        with self._noting_failure(entry):
            return self._info(entry, kind)

    def third_party_entry(self, kind: Kind, name: str) -> Entry | None:
        """Return a third-party plugin that this process has not imported; None if it is not one.

        Raises:
            PluginError: it is not installed.
        """
        entry = self._catalog.find(kind, name)
        is_known = entry.distribution == PROJECT or entry.module in self._plugins
        return None if is_known else entry

    def strategy(self, kind: Kind, name: str, settings: Mapping[str, Any]) -> Any:  # noqa: ANN401
        """Build a strategy; it is not opened.

        Args:
            kind: of the strategy.
            name: its name in the configuration.
            settings: its table of the configuration.

        Raises:
            PluginError: it is not installed, cannot be loaded, or refuses its settings.
        """
        entry = self._catalog.find(kind, name)
        with self._noting_failure(entry):
            info = self._info(entry, kind)
            with _fence(entry, "its settings"):
                config = decode(entry.plugin, info.config_type, settings)
            with _fence(entry, "build"):
                strategy = info.build(config)
                # Checked here, so that no step is the first to find that a method is missing.
                missing = [
                    method
                    for method in KINDS[kind].methods
                    if not callable(getattr(strategy, method, None))
                ]
            if missing:
                raise LoadFailed(
                    entry.plugin, f"the strategy that it builds has no {', '.join(missing)}"
                )
        self._enabled.add(entry)
        return strategy

    def detector(self, name: str, settings: Mapping[str, Any]) -> Detector | None:
        """Build the watermark detector of a logits processor; None if it leaves no watermark.

        Raises:
            PluginError: it is not installed, cannot be loaded, or refuses its settings.
        """
        entry = self._catalog.find(Kind.LOGITS_PROCESSOR, name)
        with self._noting_failure(entry):
            info = self._info(entry, Kind.LOGITS_PROCESSOR)
            if info.detector is None:
                return None
            config = decode(entry.plugin, info.config_type, settings)
            with _fence(entry, "detector"):
                return info.detector(config)

    def hooked(self, kind: Kind, names: Iterable[str]) -> list[LoadFailure]:
        """Load plugins of a kind that has hooks alone; those that fail are skipped.

        Returns:
            Those that were skipped.
        """
        failures = []
        for name in names:
            try:
                entry = self._catalog.find(kind, name)
                with self._noting_failure(entry):
                    self._plugin(entry)
                self._enabled.add(entry)
            except PluginError as error:
                failures.append(LoadFailure(kind, name, error.reason))
        return failures

    def owner(self, kind: Kind, name: str) -> str:
        """Return the distribution that provides a plugin, with its version."""
        return " and ".join(entry.owner for entry in self._catalog.owners(kind, name)) or "unknown"

    def report(self) -> list[PluginRow]:
        """Return every installed plugin and its state; loads nothing."""
        return [
            row_of(
                entry,
                self._catalog.owners(entry.kind, entry.name),
                summary=self._summaries.get(entry, ""),
                failure=self._failures.get(entry),
                is_enabled=entry in self._enabled,
            )
            for entry in self._catalog.entries
        ]

    @contextmanager
    def _noting_failure(self, entry: Entry) -> Iterator[None]:
        # Cleared only if loading returns: a process that dies meanwhile leaves the plugin's name.
        self._telltale(entry.plugin)
        try:
            yield
        except PluginError as error:
            self._telltale("")
            self._failures[entry] = error.reason
            raise
        self._telltale("")
        self._failures.pop(entry, None)

    def _info(self, entry: Entry, kind: Kind) -> StrategyInfo[Any]:
        plugin = self._plugin(entry)
        hook = KINDS[kind].hook
        with _fence(entry, hook):
            offers = self._caller(hook, plugin)()
            infos = [info for offer in offers for info in offer]
        if not offers:
            raise LoadFailed(entry.plugin, f"{entry.module} does not implement {hook}")
        info = _named(entry, infos)
        _check_spec(entry, info)
        self._summaries[entry] = info.summary
        return info

    def _caller(self, hook: str, plugin: Any) -> pluggy.HookCaller:  # noqa: ANN401
        with self._lock:
            others = [other for other in self._plugins.values() if other is not plugin]
            # pluggy can exclude plugins from a call, but not select them.
            return self._hooks.subset_hook_caller(hook, remove_plugins=others)

    def _plugin(self, entry: Entry) -> Any:  # noqa: ANN401 - a module or any object
        """Import and register a plugin, once even if it has several names."""
        if entry.module not in self._plugins:
            _check_files(entry)
            with _fence(entry, f"import of {entry.module}"):
                # Outside the lock: an import may take seconds, and Python imports a module once.
                plugin = entry.load()
            with self._lock:
                # Another thread may have been faster.
                if entry.module not in self._plugins:
                    self._register(entry, plugin)
        return self._plugins[entry.module]

    def _register(self, entry: Entry, plugin: Any) -> None:  # noqa: ANN401 - a module or any object
        try:
            with _fence(entry, "registration"):
                self._hooks.register(plugin, entry.module)
                self._refuse_unknown_hooks(entry, plugin)
        except PluginError:
            # Otherwise the hooks of a refused plugin would be called.
            self._hooks.unregister(name=entry.module)
            raise
        self._plugins[entry.module] = plugin

    def _refuse_unknown_hooks(self, entry: Entry, plugin: Any) -> None:  # noqa: ANN401
        known = [name for name in vars(hookspecs) if name.startswith("gatewayd_")]
        for caller in self._hooks.get_hookcallers(plugin) or ():
            if not caller.has_spec():
                near = nearest(caller.name, known)
                hint = f"; did you mean {near}?" if near else ""
                raise LoadFailed(entry.plugin, f"there is no hook {caller.name}{hint}")
        self._hooks.check_pending()


def _named(entry: Entry, infos: Sequence[object]) -> StrategyInfo[Any]:
    for info in infos:
        if isinstance(info, StrategyInfo) and info.name == entry.name:
            return info
    offered = ", ".join(str(getattr(info, "name", repr(info))) for info in infos) or "nothing"
    raise LoadFailed(entry.plugin, f"{entry.module} offers {offered}, not {entry.name}")


def _check_spec(entry: Entry, info: StrategyInfo[Any]) -> None:
    with _fence(entry, "requires_spec"):
        if not SpecifierSet(info.requires_spec).contains(SPEC_VERSION, prereleases=True):
            raise SpecMismatch(entry.plugin, info.requires_spec, SPEC_VERSION)


def _check_files(entry: Entry) -> None:
    if entry.distribution == PROJECT:
        return
    with _fence(entry, "the list of its files"):
        found = startup_file(entry.distribution)
    if found is not None:
        raise LoadFailed(
            entry.plugin,
            f"{entry.owner} installs {found}, which runs code whenever a Python of this machine"
            " starts; find out what it did, and uninstall it",
        )


@contextmanager
def _fence(entry: Entry, where: str) -> Iterator[None]:
    """Turn any exception of a plugin into ``LoadFailed``."""
    try:
        yield
    except (PluginError, KeyboardInterrupt):
        raise
    except BaseException as error:  # a plugin may even call sys.exit
        raise LoadFailed(entry.plugin, f"{where} raised {describe_error(error)}") from error
