"""Reload of the configuration on SIGHUP; an invalid one is rejected."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping

from gatewayd.admin.control import ChangeRefused, Control
from gatewayd.config.catalogue import model_configs
from gatewayd.config.load import ConfigError
from gatewayd.config.routes import RouteEntry
from gatewayd.config.tables import Config
from gatewayd.daemon.systemd.notifier import ServiceNotifier

_log = logging.getLogger(__name__)


class Reloading:
    """Reloads the configuration: strategies, limits and log level change, other changes are logged.

    Args:
        read: reads the configuration.
        controls: apply the changes, by the key of the model's table; None for ``[model]``.
        routes: as the daemon serves them.
        notifier: notified of reloads.

    Attributes:
        outcomes: numbers of ``applied`` and ``refused`` reloads.
    """

    def __init__(
        self,
        read: Callable[[], Config],
        controls: Mapping[str | None, Control],
        routes: Mapping[str, RouteEntry],
        notifier: ServiceNotifier,
    ) -> None:
        self._read = read
        self._routes = routes
        self._controls = controls
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
            changed = {model.name: model.config for model in model_configs(config)}
            if changed.keys() != self._controls.keys():
                _log.warning("models are added and removed by a restart only, not by a reload")
            if config.routes != self._routes:
                _log.warning("restart required: [routes] has changed")
            for key, control in self._controls.items():
                if key in changed:
                    await control.reload(changed[key], "SIGHUP")
        except (ConfigError, ChangeRefused) as error:
            _log.error("configuration not reloaded: %s", error)
            return str(error)
        except Exception as error:  # noqa: BLE001 - after any error the present one stays
            _log.exception("configuration reload failed")
            return repr(error)
        _log.info("log level set to %s", config.log.level)
        return ""
