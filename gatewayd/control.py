"""Changes a running daemon: strategies and limits, by the admin call or by the file read again.

What cannot change without a restart is named and left as it is.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar, TypeVarTuple

from pydantic import ValidationError

from gatewayd import launch, logs
from gatewayd.aside import aside
from gatewayd.config import Config
from gatewayd.config_slo import SloTable
from gatewayd.config_slots import SlotTable, StrategyTable
from gatewayd.engines.fenced import Fenced
from gatewayd.engines.fleet import EngineFleet
from gatewayd.engines.swapping import SwapRefused
from gatewayd.overrides.kept import Overrides
from gatewayd.plugging import Plugged, check_strategies, chosen_rows, load_detector
from gatewayd.sizes import limit_of, sizes
from gatewayd.slots import chosen_in, configured, hidden_settings, names_in
from gatewayd_engine.config import ENGINE_KINDS, FIXED_KINDS, StrategyChoice
from gatewayd_engine.messages import SetLimits, StrategyRow
from gatewayd_hooks.errors import PluginError
from gatewayd_hooks.loading import PluginRow
from gatewayd_hooks.settings import needing_restart, problems_in
from gatewayd_hooks.strategy import Kind, StrategyInfo

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
_log = logging.getLogger(__name__)

SWAPPABLE = (
    *(kind for kind in ENGINE_KINDS if kind not in FIXED_KINDS),
    Kind.ADMISSION,
    Kind.ROUTER,
)
LIMITS = {
    "max_batch_tokens": "engine",
    "strategy_budget_ms": "engine",
    "max_waiting_requests": "queue",
    "max_waiting_tokens": "queue",
}
"""Limits that change at once, and their tables."""


class Refused(Exception):
    """A change that is not made; the sentence says why."""


class Control:
    """Every change goes through here, one at a time.

    Args:
        config: at the start.
        fleet: the engines.
        plugged: the strategies of this process.
        kept: keeps what operators change over restarts; None for nothing that is kept.

    Attributes:
        config: in effect now.
        detector: finds the mark that answers carry from now on; None where they carry none.
        swaps: how many were made, by kind.
        on_promise: told what classes are promised from now on.
    """

    def __init__(
        self, config: Config, fleet: EngineFleet, plugged: Plugged, kept: Overrides | None = None
    ) -> None:
        self.config = config
        self.detector = load_detector(config, plugged.host)
        self._most_tokens = sizes(config.engine).max_batch_tokens
        self._fleet = fleet
        self._plugged = plugged
        self._kept = kept
        self._lock = asyncio.Lock()
        self._first = {
            (kind, name): table.settings(name) for kind, name, table in configured(config)
        }
        self.on_promise: Callable[[SloTable], None] = lambda table: None
        self.swaps: Counter[str] = Counter({kind.value: 0 for kind in SWAPPABLE})

    async def swap(
        self, kind: str, names: list[str], settings: Mapping[str, Mapping[str, Any]], who: str
    ) -> bool:
        """Fill a slot with other strategies.

        Args:
            kind: the slot.
            names: one strategy, ``none`` where a slot may be empty, or a chain in its order.
            settings: for each name, over what the configuration says of it.
            who: asks for it, for the log.

        Returns:
            Whether the state was handed over.

        Raises:
            Refused: and the one before goes on.
        """
        async with self._lock:
            table = getattr(self.config, kind, None)
            if not isinstance(table, SlotTable):
                slots = [
                    k.value for k in Kind if isinstance(getattr(self.config, k, None), SlotTable)
                ]
                raise Refused(f"there is no kind {kind!r}; there is {', '.join(slots)}")
            tables = dict(table.model_extra or {})
            for name, values in settings.items():
                tables[name] = {**tables.get(name, {}), **values}
            if isinstance(table, StrategyTable):
                if len(names) != 1:
                    raise Refused(f"{kind} takes one strategy")
                chosen: dict[str, Any] = {"strategy": names[0]}
            else:
                chosen = {"strategies": names}
            try:
                new = type(table).model_validate({**tables, **chosen})
            except ValidationError as error:
                raise Refused(f"[{kind}]: {'; '.join(problems_in(type(table), error))}") from None
            has_state = await self._swap(Kind(kind), new, who)
            self._keep([kind], who)
            return has_state

    def limit(self, changes: Mapping[str, Any], who: str) -> None:
        """Change limits.

        Raises:
            Refused: there is no such limit, or a value is out of its bounds; none is changed.
        """
        self._limit(changes, who)
        self._keep([f"{LIMITS[name]}.{name}" for name in changes], who)

    def _limit(self, changes: Mapping[str, Any], who: str) -> None:
        tables: dict[str, dict[str, Any]] = {}
        for name, value in changes.items():
            if name not in LIMITS:
                raise Refused(f"there is no limit {name!r}; there is {', '.join(LIMITS)}")
            tables.setdefault(LIMITS[name], {})[name] = value
        new = {}
        for name, values in tables.items():
            table = getattr(self.config, name)
            try:
                new[name] = type(table).model_validate({**table.model_dump(), **values})
            except ValidationError as error:
                raise Refused(f"[{name}]: {'; '.join(problems_in(type(table), error))}") from None
        config = self.config.model_copy(update=new)
        if sizes(config.engine).max_batch_tokens > self._most_tokens:
            raise Refused(
                f"max_batch_tokens is {config.engine.max_batch_tokens}; without a restart it can "
                f"be at most {self._most_tokens}, as at the start"
            )
        self.config = config
        self._apply_limits()
        for name, value in changes.items():
            _log.warning("%s is %s from now on, by %s", name, value, who)

    def promise(self, changes: Mapping[str, Mapping[str, Any]], who: str) -> None:
        """Change what classes are promised.

        Args:
            changes: by class, targets and objectives; None for no promise.
            who: asks for it, for the log.

        Raises:
            Refused: there is no such class or target, or a value is out of its bounds.
        """
        tables = self.config.slo.model_dump()
        for name, values in changes.items():
            if name not in tables:
                raise Refused(f"there is no class {name!r}; there is {', '.join(tables)}")
            tables[name] |= values
        try:
            new = SloTable.model_validate(tables)
        except ValidationError as error:
            raise Refused(f"[slo]: {'; '.join(problems_in(SloTable, error))}") from None
        self._promise(new, who)
        self._keep(["slo"], who)

    def _keep(self, sections: list[str], who: str) -> None:
        """Let what an operator has changed outlive the process."""
        if self._kept is not None:
            for section in sections:
                self._kept.keep(section, self.config, who)

    def _promise(self, new: SloTable, who: str) -> None:
        if new == self.config.slo:
            return
        self.config = self.config.model_copy(update={"slo": new})
        self._fleet.deadlines = launch.deadlines(self.config)
        self.on_promise(new)
        for name, targets in new.model_dump().items():
            shown = ", ".join(f"{key} {value}" for key, value in targets.items())
            _log.warning("class %s is promised %s from now on, by %s", name, shown, who)

    async def reload(self, file: Config, who: str) -> None:
        """Come as near to another configuration as can be without a restart.

        What operators changed stays where the file says what it said then.

        Raises:
            Refused: it cannot be used; nothing has changed.
        """
        new = file if self._kept is None else self._kept.over(file)
        plugins = ", ".join(sorted(f"{kind}.{name}" for kind, name, _ in configured(new)))
        try:
            problems = await self._aside(f"one of {plugins}", check_strategies, new)
        except PluginError as error:
            raise Refused(str(error)) from error
        if problems:
            raise Refused("; ".join(problems))
        if self._kept is not None:
            self._kept.file = file
        async with self._lock:
            logs.set_level(new.log.level)
            self._note_restarts(new)
            for kind in SWAPPABLE:
                table: SlotTable = getattr(new, kind.value)
                if chosen_in(table) == chosen_in(getattr(self.config, kind.value)):
                    self.config = self.config.model_copy(update={kind.value: table})
                    continue
                try:
                    await self._swap(kind, table, who)
                except Refused as refusal:
                    _log.error("[%s] stays as it is: %s", kind.value, refusal)
        self._promise(new.slo, who)
        now, limits = self.limits(), {n: limit_of(new, table, n) for n, table in LIMITS.items()}
        try:
            if changes := {n: v for n, v in limits.items() if v != now[n]}:
                self._limit(changes, who)
        except Refused as refusal:
            _log.error("limits stay as they are: %s", refusal)
        self.config = self.config.model_copy(
            update={"log": self.config.log.model_copy(update={"level": new.log.level})}
        )

    def slots(self) -> list[dict[str, Any]]:
        """What is chosen for every kind; secrets are hidden."""
        hidden = hidden_settings(self.config)
        found = []
        for kind in Kind:
            table = getattr(self.config, kind.value, None)
            if isinstance(table, SlotTable):
                settings = {
                    name: {
                        key: "***" if _is_hidden(hidden, kind, name, key) else value
                        for key, value in table.settings(name).items()
                    }
                    for name in names_in(table)
                }
                found.append({"kind": kind.value, "names": names_in(table), "settings": settings})
        return found

    def limits(self) -> dict[str, Any]:
        """Every limit that may be changed, as it is now."""
        return {name: limit_of(self.config, table, name) for name, table in LIMITS.items()}

    def costs(self) -> list[tuple[str, StrategyRow]]:
        """What strategies have cost, with the engine, or ``none`` for those of this process."""
        rows = [(str(one.index), row) for one in self._fleet.status() for row in one.strategies]
        asked: dict[str, Fenced[Any]] = {
            kind: fenced for kind in (Kind.ADMISSION, Kind.ROUTER) if (fenced := self._fenced(kind))
        }
        for (kind, name), cost in self._plugged.ledger.costs().items():
            state, faults = "active", 0
            if kind in asked:
                one = asked[kind]
                faults = one.fence.faults(kind, name)
                if one.fence.is_quarantined(kind, name):
                    state = "quarantined"
                elif name != one.name:
                    state = "replaced"
            figures = (cost.calls, cost.seconds, cost.longest)
            rows.append(("none", StrategyRow(kind.value, name, state, faults, *figures)))
        return rows

    def plugins(self) -> list[PluginRow]:
        """Every installed plugin; enabled are those that the configuration chooses now."""
        return chosen_rows(self._plugged.host, self.config)

    async def offer(self, kind: Kind, name: str) -> tuple[StrategyInfo[Any], dict[str, Any]]:
        """What a plugin offers, loaded as for a swap to it, and what the configuration says of it.

        Raises:
            PluginError: it is not installed, or cannot be loaded.
        """
        table = getattr(self.config, kind.value, None)
        settings = table.settings(name) if isinstance(table, SlotTable) else {}
        info = await self._aside(f"{kind}.{name}", self._plugged.info, kind, name, settings)
        return info, settings

    def _apply_limits(self) -> None:
        engine = self.config.engine
        self._fleet.backlog.limits = launch.queue_limits(self.config)
        self._plugged.ledger.budget = engine.strategy_budget_ms / 1000
        self._fleet.swaps.limit(
            SetLimits(sizes(engine).max_batch_tokens, engine.strategy_budget_ms)
        )

    async def _swap(self, kind: Kind, new: SlotTable, who: str) -> bool:
        if kind in FIXED_KINDS:
            raise Refused(
                f"{kind} is fixed while engines run, for what they hold is in its form; set "
                f"[{kind}] in the configuration's file and restart"
            )
        old: SlotTable = getattr(self.config, kind.value)
        detector = self.detector
        chosen = [(name, settings) for name, settings in chosen_in(new) if name != launch.NONE]
        try:
            for name, settings in chosen:
                await self._aside(f"{kind}.{name}", self._check, kind, name, settings)
            if kind is Kind.LOGITS_PROCESSOR:
                marking = self.config.model_copy(update={kind.value: new})
                detector = await self._aside(kind.value, load_detector, marking, self._plugged.host)
            if (fenced := self._fenced(kind)) is not None:
                has_state = await self._swap_ours(fenced, new)
            elif kind in SWAPPABLE:
                choices = [StrategyChoice(name, settings) for name, settings in chosen]
                proven = self._plugged.is_proven(kind, [name for name, _ in chosen])
                has_state = await self._fleet.swaps.swap(kind, choices, is_proven=proven)
            else:
                raise Refused(f"another {kind} needs a restart")
        except (PluginError, SwapRefused) as error:
            raise Refused(str(error)) from error
        self.config = self.config.model_copy(update={kind.value: new})
        for name, settings in chosen:
            self._first.setdefault((kind, name), settings)
        self.detector = detector
        self.swaps[kind.value] += 1
        _log.warning(
            "%s is %s instead of %s, by %s; %s",
            kind.value,
            ", ".join(names_in(new)) or "empty",
            ", ".join(names_in(old)) or "empty",
            who,
            "its state was handed over" if has_state else "it starts afresh",
        )
        return has_state

    def _check(self, kind: Kind, name: str, settings: Mapping[str, Any]) -> None:
        """Look at a choice before any engine is asked.

        Raises:
            PluginError: it cannot be loaded, or refuses its settings.
            Refused: it needs a restart.
        """
        info = self._plugged.info(kind, name, settings)
        # Also one that was left out meanwhile is held to what it was first used with.
        before = self._first.get((kind, name), settings)
        plugin = f"{kind}.{name}"
        if keys := needing_restart(plugin, info.config_type, before, settings):
            raise Refused(f"[{plugin}] {', '.join(keys)} needs a restart")

    def _fenced(self, kind: Kind) -> Fenced[Any] | None:
        """What asks the strategy of a kind, if that is asked in this process."""
        return {Kind.ADMISSION: self._fleet.admission, Kind.ROUTER: self._fleet.router}.get(kind)

    async def _swap_ours(self, fenced: Fenced[Any], table: SlotTable) -> bool:
        ((name, settings),) = chosen_in(table)
        kind = fenced.kind
        strategy = await self._aside(
            f"{kind}.{name}", self._plugged.open_strategy, kind, name, settings
        )
        try:
            return fenced.replace(strategy, name)
        except Exception as error:
            raise Refused(f"{kind} {name} cannot take over: {error}") from error

    def _aside(self, plugin: str, call: Callable[[*Ts], T], *args: *Ts) -> Awaitable[T]:
        return aside(plugin, self.config.engine.load_seconds, call, *args)

    def _note_restarts(self, new: Config) -> None:
        """Name what has changed and does not take effect."""
        hot = {kind.value for kind in SWAPPABLE} | {"log", "slo"}
        for table in type(self.config).model_fields:
            if table in hot:
                continue
            ours, theirs = getattr(self.config, table), getattr(new, table)
            for key in {**ours.model_dump(), **theirs.model_dump()}:
                if LIMITS.get(key) != table and _value(ours, key) != _value(theirs, key):
                    _log.warning("[%s] %s has changed; it takes effect after a restart", table, key)
        if new.log.format != self.config.log.format:
            _log.warning("[log] format has changed; it takes effect after a restart")


def _value(table: Any, key: str) -> Any:  # noqa: ANN401 - a table of any kind
    return getattr(table, key, None)


def _is_hidden(hidden: set[str], kind: Kind, name: str, key: str) -> bool:
    return f"{kind.value}.{name}" in hidden or f"{kind.value}.{name}.{key}" in hidden
