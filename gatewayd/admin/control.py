"""Control of a running daemon: changes of strategies and limits, by admin calls or by a reload.

Changes that need a restart are reported and not applied.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar, TypeVarTuple

from gatewayd.admin.changes import (
    LIMITS,
    SWAPPABLE,
    ChangeRefused,
    kind_table_with,
    limited,
    limits_in,
    log_restarts_required,
    slo_with,
)
from gatewayd.admin.overrides.persisted_overrides import Overrides
from gatewayd.admin.strategy_costs import costs_of
from gatewayd.config.chosen_strategies import chosen_in, configured, names_in, shown_kinds
from gatewayd.config.device_defaults import sizes
from gatewayd.config.slo import SloTable
from gatewayd.config.strategies import NONE, KindTable
from gatewayd.config.tables import Config
from gatewayd.engines.fleet import EngineFleet
from gatewayd.engines.hot_swap import FleetSwapRefused
from gatewayd.engines.replicas import launch
from gatewayd.plugins.call_with_timeout import call_with_timeout
from gatewayd.plugins.fenced import Fenced
from gatewayd.plugins.loaded import LoadedPlugins, check_strategies, chosen_rows, load_detector
from gatewayd.tracing import logs
from gatewayd_engine.process.config import FIXED_KINDS, StrategyChoice
from gatewayd_engine.process.messages import SetLimits, StrategyRow
from gatewayd_hooks.host.errors import PluginError
from gatewayd_hooks.host.loading import PluginRow
from gatewayd_hooks.host.settings import needing_restart
from gatewayd_hooks.strategy import Kind, StrategyInfo

__all__ = ["LIMITS", "SWAPPABLE", "ChangeRefused", "Control"]

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
_log = logging.getLogger(__name__)


class Control:
    """Applies changes of the configuration, one at a time.

    Args:
        config: configuration at the start.
        fleet: the engines.
        plugged: strategies of this process.
        kept: persists operators' changes across restarts; None to persist none.

    Attributes:
        config: the present configuration.
        detector: detects the watermark of responses; None where they have none.
        swaps: number of swaps, by kind.
        on_slo_change: called with changed SLO targets.
        on_reload: called after a reload.
    """

    def __init__(
        self,
        config: Config,
        fleet: EngineFleet,
        plugged: LoadedPlugins,
        kept: Overrides | None = None,
    ) -> None:
        self.config = config
        self.detector = load_detector(config, plugged.host)
        self._most_tokens = sizes(config.engine).max_batch_tokens
        self._fleet = fleet
        self._plugged = plugged
        self._kept = kept
        self._lock = asyncio.Lock()
        # Settings with which each strategy was first used; those that need a restart must stay.
        self._first = {
            (kind, name): table.settings(name) for kind, name, table in configured(config)
        }
        self.on_slo_change: Callable[[SloTable], None] = lambda table: None
        self.on_reload: Callable[[], None] = lambda: None
        self.swaps: Counter[str] = Counter({kind.value: 0 for kind in SWAPPABLE})

    def changes_for_version(self) -> Overrides | None:
        """Return the operators' changes with which a version of the model begins its trial."""
        return None if self._kept is None else self._kept.copy()

    def succeed(self, other: Control) -> None:
        """Continue as the control of a model whose version is promoted: its name, its record."""
        self._kept = other._kept
        name = other.config.model.served_name
        model = self.config.model.model_copy(update={"served_name": name})
        self.config = self.config.model_copy(update={"model": model})

    async def swap(
        self, kind: str, names: list[str], settings: Mapping[str, Mapping[str, Any]], who: str
    ) -> bool:
        """Swap the strategies of a kind.

        Args:
            kind: the kind.
            names: one strategy, ``none`` where the kind is optional, or a chain in its order.
            settings: by name, overriding the configuration's.
            who: the operator, for the log.

        Returns:
            Whether the previous strategy's state was handed over.

        Raises:
            ChangeRefused: the previous strategies stay.
        """
        # One swap at a time: each awaits plugins and engines, and builds on the result of the last.
        async with self._lock:
            new = kind_table_with(self.config, kind, names, settings)
            has_state = await self._swap(Kind(kind), new, who)
            self._persist([kind], who)
            return has_state

    def set_limits(self, changes: Mapping[str, Any], who: str) -> None:
        """Change limits.

        Raises:
            ChangeRefused: the limit does not exist, or a value is out of bounds; none is changed.
        """
        # Without the lock: nothing is awaited, so no other change can come in between.
        self._set_limits(changes, who)
        self._persist([f"{LIMITS[name]}.{name}" for name in changes], who)

    def _set_limits(self, changes: Mapping[str, Any], who: str) -> None:
        self.config = limited(self.config, changes, self._most_tokens)
        self._apply_limits()
        for name, value in changes.items():
            _log.warning("limit %s set to %s by %s", name, value, who)

    def set_slo(self, changes: Mapping[str, Mapping[str, Any]], who: str) -> None:
        """Change the SLO targets of classes.

        Args:
            changes: targets and objectives by class; None for no target.
            who: the operator, for the log.

        Raises:
            ChangeRefused: the class or target does not exist, or a value is out of bounds.
        """
        self._set_slo(slo_with(self.config, changes), who)
        self._persist(["slo"], who)

    def _persist(self, sections: list[str], who: str) -> None:
        """Persist changed sections."""
        if self._kept is not None:
            for section in sections:
                self._kept.persist(section, self.config, who)

    def _set_slo(self, new: SloTable, who: str) -> None:
        if new == self.config.slo:
            return
        self.config = self.config.model_copy(update={"slo": new})
        self._fleet.deadlines = launch.deadlines(self.config)
        self.on_slo_change(new)
        for name, targets in new.model_dump().items():
            shown = ", ".join(f"{key} {value}" for key, value in targets.items())
            _log.warning("SLO targets of class %s set to %s by %s", name, shown, who)

    async def reload(self, file: Config, who: str) -> None:
        """Apply a configuration file as far as possible without a restart.

        Operators' changes stay in effect where the file has not changed since.

        Raises:
            ChangeRefused: the file is not valid; nothing has changed.
        """
        async with self._lock:
            before = self.config
            new = file if self._kept is None else self._kept.apply(file)
            # All of the file first: one with any invalid strategy changes nothing.
            await self.check_file(new)
            # The base of later changes is the file that was accepted, not one that was refused.
            if self._kept is not None:
                self._kept.file = file
            logs.set_level(new.log.level)
            log_restarts_required(self.config, new)
            for kind in SWAPPABLE:
                table: KindTable = getattr(new, kind.value)
                if chosen_in(table) == chosen_in(getattr(self.config, kind.value)):
                    # Settings of strategies that are not chosen may have changed nevertheless.
                    self.config = self.config.model_copy(update={kind.value: table})
                    continue
                try:
                    await self._swap(kind, table, who)
                # One refused change does not keep the others from being applied.
                except ChangeRefused as refusal:
                    _log.error("[%s] not changed: %s", kind.value, refusal)
        # Operators change these without the lock: what they have changed meanwhile stays.
        if self.config.slo == before.slo:
            self._set_slo(new.slo, who)
        now, was, limits = self.limits(), limits_in(before), limits_in(new)
        try:
            if changes := {n: v for n, v in limits.items() if v != now[n] and now[n] == was[n]}:
                self._set_limits(changes, who)
        except ChangeRefused as refusal:
            _log.error("limits not changed: %s", refusal)
        # Of the table only the level: another format needs a restart.
        self.config = self.config.model_copy(
            update={"log": self.config.log.model_copy(update={"level": new.log.level})}
        )
        self.on_reload()

    async def check_file(self, new: Config) -> None:
        """Check the strategies of a configuration without changing anything.

        Raises:
            ChangeRefused: one is not valid.
        """
        plugins = ", ".join(sorted(f"{kind}.{name}" for kind, name, _ in configured(new)))
        try:
            problems = await self._run_aside(f"one of {plugins}", check_strategies, new)
        except PluginError as error:
            raise ChangeRefused(str(error)) from error
        if problems:
            raise ChangeRefused("; ".join(problems))

    def kinds(self) -> list[dict[str, Any]]:
        """Chosen strategies of each kind; secrets are hidden."""
        return shown_kinds(self.config)

    def limits(self) -> dict[str, Any]:
        """The present values of all limits that can change."""
        return limits_in(self.config)

    def costs(self) -> list[tuple[str, StrategyRow]]:
        """Costs of strategies, with the engine, or ``none`` for those of this process."""
        asked = [fenced for kind in Kind if (fenced := self._fenced(kind)) is not None]
        return costs_of(self._fleet, asked, self._plugged.plugin_times)

    def plugins(self) -> list[PluginRow]:
        """All installed plugins; enabled are those that are chosen now."""
        return chosen_rows(self._plugged.host, self.config)

    async def offer(self, kind: Kind, name: str) -> tuple[StrategyInfo[Any], dict[str, Any]]:
        """Load a plugin as for a swap, and return its info with the configuration's settings.

        Raises:
            PluginError: it is not installed, or fails to load.
        """
        table = getattr(self.config, kind.value, None)
        settings = table.settings(name) if isinstance(table, KindTable) else {}
        info = await self._run_aside(f"{kind}.{name}", self._plugged.info, kind, name, settings)
        return info, settings

    def _apply_limits(self) -> None:
        engine = self.config.engine
        self._fleet.backlog.limits = launch.queue_limits(self.config)
        self._plugged.plugin_times.budget = engine.strategy_budget_ms / 1000
        self._fleet.swaps.set_limits(
            SetLimits(sizes(engine).max_batch_tokens, engine.strategy_budget_ms)
        )

    async def _swap(self, kind: Kind, new: KindTable, who: str) -> bool:
        if kind in FIXED_KINDS:
            raise ChangeRefused(
                f"{kind} cannot be changed while engines run, as their weights or KV cache depend "
                f"on it; set [{kind}] in the configuration's file and restart"
            )
        old: KindTable = getattr(self.config, kind.value)
        detector = self.detector
        chosen = [(name, settings) for name, settings in chosen_in(new) if name != NONE]
        try:
            for name, settings in chosen:
                # In a thread, with a timeout: the import of a plugin may take long or hang.
                await self._run_aside(f"{kind}.{name}", self._check, kind, name, settings)
            # Before the engines swap: a chain whose watermark cannot be detected is refused.
            if kind is Kind.LOGITS_PROCESSOR:
                marking = self.config.model_copy(update={kind.value: new})
                detector = await self._run_aside(
                    kind.value, load_detector, marking, self._plugged.host
                )
            if (fenced := self._fenced(kind)) is not None:
                has_state = await self._swap_local(fenced, new)
            elif kind in SWAPPABLE:
                choices = [StrategyChoice(name, settings) for name, settings in chosen]
                proven = self._plugged.is_proven(kind, [name for name, _ in chosen])
                has_state = await self._fleet.swaps.swap(kind, choices, is_proven=proven)
            else:
                raise ChangeRefused(f"another {kind} needs a restart")
        except (PluginError, FleetSwapRefused) as error:
            raise ChangeRefused(str(error)) from error
        # A copy of the present configuration: limits may have changed during the awaits above.
        self.config = self.config.model_copy(update={kind.value: new})
        for name, settings in chosen:
            self._first.setdefault((kind, name), settings)
        self.detector = detector
        self.swaps[kind.value] += 1
        _log.warning(
            "strategy swapped: %s is now %s instead of %s, by %s; %s",
            kind.value,
            ", ".join(names_in(new)) or "empty",
            ", ".join(names_in(old)) or "empty",
            who,
            "state handed over" if has_state else "state reset",
        )
        return has_state

    def _check(self, kind: Kind, name: str, settings: Mapping[str, Any]) -> None:
        """Validate a choice before engines are asked.

        Raises:
            PluginError: it fails to load, or refuses its settings.
            ChangeRefused: it needs a restart.
        """
        info = self._plugged.info(kind, name, settings)
        # A strategy that was swapped out meanwhile keeps the settings of its first use.
        before = self._first.get((kind, name), settings)
        plugin = f"{kind}.{name}"
        if keys := needing_restart(plugin, info.config_type, before, settings):
            raise ChangeRefused(f"[{plugin}] {', '.join(keys)} needs a restart")

    def _fenced(self, kind: Kind) -> Fenced[Any] | None:
        """The fenced strategy of a kind that runs in this process; None for other kinds."""
        return {Kind.ADMISSION: self._fleet.admission, Kind.ROUTER: self._fleet.router}.get(kind)

    async def _swap_local(self, fenced: Fenced[Any], table: KindTable) -> bool:
        ((name, settings),) = chosen_in(table)
        kind = fenced.kind
        strategy = await self._run_aside(
            f"{kind}.{name}", self._plugged.open_strategy, kind, name, settings
        )
        try:
            # On the event loop: the watchdog interrupts the main thread alone.
            return fenced.replace(strategy, name)
        except Exception as error:
            raise ChangeRefused(f"{kind} {name} cannot take over: {error}") from error

    def _run_aside(self, plugin: str, call: Callable[[*Ts], T], *args: *Ts) -> Awaitable[T]:
        return call_with_timeout(plugin, self.config.engine.load_seconds, call, *args)
