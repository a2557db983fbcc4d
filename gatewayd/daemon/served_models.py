"""The models of a running daemon: built at the start, added and removed later."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from pydantic import ValidationError

from gatewayd.admin.changes import ChangeRefused
from gatewayd.admin.models import AdminModels
from gatewayd.admin.overrides.model_overrides import MODEL, ModelOverrides
from gatewayd.admin.overrides.records import OverrideRecord
from gatewayd.admin.watchers import SnapshotBroadcast
from gatewayd.catalogue.catalogue import Catalogue
from gatewayd.catalogue.memory_budget import BudgetExceeded
from gatewayd.catalogue.model_residency import ModelResidency, demand_of
from gatewayd.config.catalogue import ModelConfig, ModelConfigError, model_configs
from gatewayd.config.models import MODEL_KEYS, ModelEntry, merge
from gatewayd.config.tables import Config, ModelTable
from gatewayd.daemon.models import ModelParts, ServedFiles
from gatewayd.engines.fleet import EngineFleet
from gatewayd.http.asgi import App
from gatewayd.hub.local_models import LocalModels
from gatewayd_hooks.host.loading import PluginError
from gatewayd_hooks.host.settings import problems_in

_log = logging.getLogger("gatewayd.daemon")

_POLL_SECONDS = 0.05
_SETTLE_SECONDS = 5.0
"""Time in which a request that has chosen a model is submitted to it."""
_AT_START = ("served_names", "memory", "pinned", "preload")
"""Keys of a model's table that have no table of the configuration."""

Build = Callable[..., ModelParts]
AdminOf = Callable[[ModelParts], tuple[App, SnapshotBroadcast]]


class ServedModels:
    """Adds and removes models; its methods are called from the event loop only.

    Args:
        models: parts of each model, in order; the same list that all others read.
        catalogue: names of the models.
        residency: loads and unloads them.
        overrides: persists changes.
        build: builds the parts of a model; blocking.
        local_models: holds the files of served models.
        on_added: called with a model before it starts; returns what is called when it has ended.
        ending: gets the parts of models that are served no more and finish their requests.

    Attributes:
        config: the configuration that the present models follow.
        file: the configuration file's content.
        admin: dispatches admin requests to a model; None without an admin socket.
        admin_of: builds the admin API of a model.
        watching: streams of snapshots of all models.
    """

    def __init__(
        self,
        models: list[ModelParts],
        catalogue: Catalogue,
        residency: ModelResidency,
        overrides: ModelOverrides,
        build: Build,
        local_models: LocalModels,
        on_added: Callable[[ModelParts], Callable[[], object]],
        ending: list[ModelParts],
        *,
        config: Config,
        file: Config,
    ) -> None:
        self._models = models
        self._catalogue = catalogue
        self._residency = residency
        self._overrides = overrides
        self._build = build
        self._local_models = local_models
        self._on_added = on_added
        self._shared = models[0].plugged
        self._lock = asyncio.Lock()
        self._ending = ending
        self._tasks: set[asyncio.Task[None]] = set()
        # What ends with a model that was added while the daemon runs.
        self._held: dict[EngineFleet, list[Callable[[], object]]] = {}
        self.config, self.file = config, file
        self.admin: AdminModels | None = None
        self.admin_of: AdminOf | None = None
        self.watching: list[SnapshotBroadcast] = []

    async def add(self, name: str, table: Mapping[str, Any], who: str) -> None:
        """Serve another model, and after restarts as well.

        Args:
            name: key of its table.
            table: as ``[models.NAME]`` of the configuration.
            who: the operator.

        Raises:
            ChangeRefused: it cannot be served.
        """
        async with self._lock:
            if self.find(name) is not None:
                raise ChangeRefused(f"there is a model {name!r} already: remove it first")
            try:
                entry = ModelEntry.model_validate(table)
            except ValidationError as error:
                raise ChangeRefused("; ".join(problems_in(ModelEntry, error))) from None
            config = self.config.model_copy(update={"models": {**self.config.models, name: entry}})
            await self._add(_own(config, name))
            self.config = config
            self._overrides.persist(name, entry, self.file, who)
            _log.warning("model %s added by %s", name, who)

    async def remove(self, name: str, seconds: float, who: str) -> None:
        """Stop serving a model, also after restarts.

        Args:
            name: key of its table.
            seconds: time for its running requests.
            who: the operator.

        Raises:
            ChangeRefused: there is no such model, or no other, or a route uses it.
        """
        async with self._lock:
            model = self.find(name)
            if model is None or model.key is None:
                names = ", ".join([one.key for one in self._models if one.key is not None])
                raise ChangeRefused(
                    f"there is no model {name!r} in the catalogue; there is {names or 'none'}"
                )
            if model.is_on_trial or self._catalogue.is_divided(model.target):
                raise ChangeRefused("a version is on trial: promote it or roll it back first")
            if uses := self._catalogue.routes_to(model.target):
                raise ChangeRefused(
                    f"the route {uses[0]} uses it: remove it from [routes.{uses[0]}] targets and "
                    "restart first"
                )
            ended = self._remove(model, seconds)
            models = {key: one for key, one in self.config.models.items() if key != name}
            self.config = self.config.model_copy(update={"models": models})
            self._overrides.persist(name, None, self.file, who)
            _log.warning("model %s removed by %s", name, who)
        # Others can be changed meanwhile; it ends also if the operator does not wait for it.
        await asyncio.shield(ended)

    def table_of_version(self, model: ModelParts, table: Mapping[str, Any]) -> ModelEntry:
        """Return the table of a version: the model's own, with what it sets differently.

        Raises:
            ChangeRefused: it is not valid, or sets what only the configuration of `[model]` can.
        """
        if "served_names" in table:
            raise ChangeRefused("served_names: a version has its model's names")
        if model.key is None:
            if wrong := [key for key in table if key not in (*MODEL_KEYS, *_AT_START)]:
                raise ChangeRefused(
                    f"{wrong[0]}: a version of [model] has the configuration's; "
                    f"only {', '.join(MODEL_KEYS)} can be set"
                )
            own = self.config.model.model_dump(exclude_unset=True, include=set(MODEL_KEYS))
        else:
            own = self.config.models[model.key].model_dump(exclude_unset=True)
        # Another checkpoint may need more or less.
        base = {key: value for key, value in own.items() if key not in ("served_names", "memory")}
        try:
            return ModelEntry.model_validate(merge(base, table))
        except ValidationError as error:
            raise ChangeRefused("; ".join(problems_in(ModelEntry, error))) from None

    async def add_version(self, model: ModelParts, version: str, entry: ModelEntry) -> ModelParts:
        """Load a version of a model that no name stands for; it is not persisted.

        Args:
            model: the present version.
            version: name of the other one.
            entry: its table.

        Raises:
            ChangeRefused: it cannot be served.
        """
        async with self._lock:
            if self.find(version) is not None:
                raise ChangeRefused(f"there is a model {version!r} already")
            models = {**self.config.models, version: entry}
            config = self.config.model_copy(update={"models": models})
            return await self._add(_own(config, version), version_of=model)

    def remove_version(self, version: ModelParts, seconds: float) -> None:
        """Stop a version on trial when its requests have ended.

        Args:
            version: its parts.
            seconds: time for its running requests.
        """
        self._models.remove(version)
        if self.admin is not None:
            self.admin.remove(version.name)
        self._end_later(version, seconds, settles=True)

    def promote(
        self,
        old: ModelParts,
        version: ModelParts,
        entry: ModelEntry,
        seconds: float,
        who: str,
        ended: OverrideRecord,
    ) -> None:
        """Replace a model by a version of it, also after restarts; no request is refused.

        Args:
            old: the present version.
            version: the one on trial, which gets its names.
            entry: table of the version, without names.
            seconds: time for running requests of the present version.
            who: the operator.
            ended: record of the end of its trial, written with the promotion.
        """
        # Nothing below fails: half a promotion would be none.
        promoted, section = self._promoted(old, entry)
        target = replace(version.target, names=old.target.names)
        # Both are listed until the old one has ended: under one name each.
        version.managed.name, old.managed.name = old.name, version.name
        version.managed.is_pinned = old.managed.is_pinned
        version.control.succeed(old.control)
        new = replace(version, key=old.key, target=target, is_on_trial=False)
        self._catalogue.promote(old.target, target)
        self._models.remove(version)
        self._models[self._models.index(old)] = new
        if self.admin is not None:
            self.admin.promote(old.name, version.name, target.live)
        self._overrides.persist(section, promoted, self.file, who, ended)
        self._end_later(old, seconds, settles=True)

    def _promoted(self, old: ModelParts, entry: ModelEntry) -> tuple[ModelEntry | ModelTable, str]:
        """Return the model's table, which is that of the version from now on, and its section."""
        if old.key is None:
            table = self.config.model.model_copy(
                update={key: getattr(entry, key) for key in MODEL_KEYS} | {"served_name": old.name}
            )
            self.config = self.config.model_copy(update={"model": table})
            return table, MODEL
        before = self.config.models[old.key]
        kept = [key for key in _AT_START if key not in entry.model_fields_set]
        names = {key: getattr(before, key) for key in kept if key in before.model_fields_set}
        promoted = entry.model_copy(update=names)
        models = {**self.config.models, old.key: promoted}
        self.config = self.config.model_copy(update={"models": models})
        return promoted, old.key

    async def wait_ended(self) -> None:
        """Wait for models that finish their requests; at the end of the daemon they are cut."""
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def follow(self, file: Config, seconds: float) -> Config:
        """Add and remove models as a reloaded configuration file says; changed ones stay.

        Returns:
            The configuration with operators' changes of models.

        Raises:
            ChangeRefused: a new model cannot be served; those before it are.
        """
        async with self._lock:
            wanted = self.effective(file)
            self.file = file
            for name in wanted.models:
                if self.find(name) is None:
                    await self._add(_own(wanted, name))
                    _log.warning("model %s added by a reload", name)
            for model in list(self._models):
                if model.key is None or model.is_on_trial or model.key in wanted.models:
                    continue
                if self._catalogue.is_divided(model.target):
                    _log.warning("the model %s stays: a version of it is on trial", model.key)
                    models = {**wanted.models, model.key: self.config.models[model.key]}
                    wanted = wanted.model_copy(update={"models": models})
                else:
                    self._remove(model, seconds)
                    _log.warning("model %s removed by a reload", model.key)
            self._log_restarts(wanted)
            self.config = wanted
            return wanted

    def effective(self, file: Config) -> Config:
        """Return a configuration file's content with operators' changes of models."""
        return self._overrides.apply(file)

    def _log_restarts(self, wanted: Config) -> None:
        for name, entry in wanted.models.items():
            before = self.config.models.get(name)
            for key in _AT_START if before is not None else ():
                if getattr(before, key) != getattr(entry, key):
                    _log.warning("restart required: [models.%s] %s has changed", name, key)

    def find(self, name: str) -> ModelParts | None:
        """Return the parts of a model, by its key or own name; None if there is none."""
        return next((one for one in self._models if name in (one.key, one.name)), None)

    async def _add(
        self, config: ModelConfig, *, version_of: ModelParts | None = None
    ) -> ModelParts:
        try:
            # In a thread: it reads a tokenizer, and opens plugins.
            files = await asyncio.to_thread(ServedFiles.find, config.config)
            changes = None if version_of is None else version_of.control.changes_for_version()
            model = await asyncio.to_thread(self._build, config, files, changes=changes)
        except (OSError, ValueError, PluginError) as error:
            raise ChangeRefused(str(error)) from error
        try:
            self._residency.add(model.managed)
        except BudgetExceeded as error:
            await self._close(model)
            raise ChangeRefused(str(error)) from error
        if version_of is not None:
            model = replace(model, is_on_trial=True)
        else:
            try:
                self._catalogue.add(model.target)
            except ValueError as error:
                self._residency.remove(model.managed)
                await self._close(model)
                raise ChangeRefused(str(error)) from error
        model.fleet.demand = demand_of(self._residency, model.managed)
        self._held[model.fleet] = [self._local_models.hold(files.source)]
        self._models.append(model)
        if self.admin is not None and self.admin_of is not None:
            app, watching = self.admin_of(model)
            self.admin.add(model.name, app, model.target.live)
            self.watching.append(watching)
            self._held[model.fleet].append(partial(self._stop_watching, watching))
        self._held[model.fleet].append(self._on_added(model))
        model.fleet.start(is_asleep=True)
        if model.preloads:
            # As a request would: another model may have to go.
            self._residency.demand(model.managed, is_firm=True)
        return model

    def _remove(self, model: ModelParts, seconds: float) -> asyncio.Task[None]:
        if len(self._models) == 1:
            raise ChangeRefused("it is the last model: a daemon serves at least one")
        # From here on its names are unknown; requests that have found it are finished.
        self._catalogue.remove(model.target)
        self._models.remove(model)
        if self.admin is not None:
            self.admin.remove(model.name)
        return self._end_later(model, seconds, settles=False)

    def _end_later(self, model: ModelParts, seconds: float, *, settles: bool) -> asyncio.Task[None]:
        """Let a model that no name stands for finish its requests, and close it.

        Args:
            model: its parts.
            seconds: time for its requests.
            settles: whether it ends only when it had none for a while: they may have chosen it,
                and still be prepared.
        """
        self._ending.append(model)
        end = self._end(model, seconds, _SETTLE_SECONDS if settles else 0.0)
        ending = asyncio.create_task(end, name=f"end {model.name}")
        self._tasks.add(ending)
        ending.add_done_callback(self._tasks.discard)
        return ending

    async def _end(self, model: ModelParts, seconds: float, settle: float) -> None:
        fleet = model.fleet
        now = busy = time.monotonic()
        deadline = now + seconds
        # The end of a sequence has no event.
        while now < deadline and not fleet.is_draining and (fleet.is_busy or now - busy < settle):
            await asyncio.sleep(_POLL_SECONDS)
            now = time.monotonic()
            busy = now if fleet.is_busy else busy
        try:
            # A daemon that drains gives it the time that the others have.
            while fleet.is_draining and fleet.num_unfinished:  # noqa: ASYNC110
                await asyncio.sleep(_POLL_SECONDS)
            await fleet.stop()
            self._residency.remove(model.managed)
            await self._close(model)
        finally:
            self._ending.remove(model)
            for end in self._held.pop(fleet, ()):
                end()

    def _stop_watching(self, watching: SnapshotBroadcast) -> None:
        watching.close()
        self.watching.remove(watching)

    async def _close(self, model: ModelParts) -> None:
        model.target.metrics.close()
        await model.guides.close()
        if model.plugged is not self._shared:
            model.plugged.close()


def _own(config: Config, name: str) -> ModelConfig:
    """The configuration of one model.

    Raises:
        ChangeRefused: it is not valid.
    """
    try:
        return next(one for one in model_configs(config) if one.name == name)
    except ModelConfigError as error:
        problems = [
            f"models.{error.name}.{'.'.join(map(str, one['loc']))}: {one['msg']}"
            for one in error.error.errors()
        ]
        raise ChangeRefused("; ".join(problems)) from None
