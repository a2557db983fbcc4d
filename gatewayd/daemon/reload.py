"""Reload of the configuration on SIGHUP; an invalid one is rejected."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from gatewayd.admin.control import ChangeRefused
from gatewayd.config.catalogue import model_configs
from gatewayd.config.load import ConfigError
from gatewayd.config.routes import RouteEntry
from gatewayd.config.tables import Config
from gatewayd.config.upstreams import UpstreamEntry
from gatewayd.daemon.models import ModelParts
from gatewayd.daemon.served_models import ServedModels
from gatewayd.daemon.systemd.notifier import ServiceNotifier

_log = logging.getLogger(__name__)


class Reloading:
    """Reloads the configuration: strategies, limits and log level change, other changes are logged.

    Args:
        read: reads the configuration.
        models: parts of all models, each with a control that applies the changes.
        served: adds and removes models.
        routes, upstreams: as the daemon serves them.
        notifier: notified of reloads.

    Attributes:
        outcomes: numbers of ``applied`` and ``refused`` reloads.
    """

    def __init__(
        self,
        read: Callable[[], Config],
        models: Sequence[ModelParts],
        served: ServedModels,
        routes: Mapping[str, RouteEntry],
        upstreams: Mapping[str, UpstreamEntry],
        notifier: ServiceNotifier,
    ) -> None:
        self._read = read
        self._models = models
        self._served = served
        self._routes = routes
        self._upstreams = upstreams
        self._notifier = notifier
        self._wanted = False
        self._task: asyncio.Task[None] | None = None
        self.outcomes = Counter(applied=0, refused=0)

    def request(self) -> None:
        """Request a reload; requests during a reload lead to one more after it."""
        self._wanted = True
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="reload")

    async def _run(self) -> None:
        # One RELOADING and one READY for a whole series of signals.
        self._notifier.reloading()
        refusal = ""
        while self._wanted:
            # Cleared before the file is read: a later signal may be about a later edit.
            self._wanted = False
            refusal = await self._reload()
            self.outcomes["refused" if refusal else "applied"] += 1
        self._notifier.reloaded(refusal)

    async def _reload(self) -> str:
        """Reload once; return the reason if it is refused."""
        try:
            config = self._read()
            if config.routes != self._routes:
                _log.warning("restart required: [routes] has changed")
            if config.upstreams != self._upstreams:
                _log.warning("restart required: [upstreams] has changed")
            # Models that stay first: a new one may take long to be read.
            effective = self._served.effective(config)
            wanted = {model.name: model.config for model in model_configs(effective)}
            for model in list(self._models):
                if model.key in wanted:
                    # All before any: one wrong table leaves every model as it is.
                    await model.control.check_file(wanted[model.key])
            for model in list(self._models):
                if model.key in wanted:
                    await model.control.reload(wanted[model.key], "SIGHUP")
            await self._served.follow(config, config.server.drain_seconds)
        except (ConfigError, ChangeRefused) as error:
            _log.error("configuration not reloaded: %s", error)
            return str(error)
        except Exception as error:  # noqa: BLE001 - after any error the present one stays
            _log.exception("configuration reload failed")
            return repr(error)
        _log.info("log level set to %s", config.log.level)
        return ""
