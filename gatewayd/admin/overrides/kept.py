"""Puts what operators changed over the configuration's file, where that is still what it was."""

from __future__ import annotations

import logging
from collections.abc import Callable

from sqlalchemy import Connection

from gatewayd.admin.overrides import records
from gatewayd.admin.overrides.records import OverrideRecord
from gatewayd.admin.overrides.sections import said, saying
from gatewayd.config.chosen_strategies import hidden_settings
from gatewayd.config.tables import Config

_log = logging.getLogger(__name__)


class Overrides:
    """Of one daemon.

    Args:
        changes: the last of each section, from the store.
        write: puts a row down, without waiting.
        now: Unix time.

    Attributes:
        file: what the configuration's file says.
    """

    def __init__(
        self,
        changes: list[OverrideRecord],
        write: Callable[[Callable[[Connection], object]], None],
        now: Callable[[], float],
    ) -> None:
        self._changes = {change.section: change for change in changes}
        self._write = write
        self._now = now
        self.file: Config | None = None

    def over(self, file: Config) -> Config:
        """What is in effect where the file says this: it counts where it has changed since."""
        config = file
        for section, change in self._changes.items():
            try:
                base = said(file, section)
                if change.value == base:
                    continue
                if base != change.base:
                    _log.warning(
                        "runtime change of [%s] dropped: the configuration file has changed since",
                        section,
                    )
                    continue
                config = saying(config, section, change.value)
            except (AttributeError, KeyError, ValueError) as error:
                _log.warning("runtime change of [%s] cannot be applied: %s", section, error)
                continue
            _log.warning(
                "runtime change of [%s] by %s overrides the configuration file",
                section,
                change.actor,
            )
        return config

    def keep(self, section: str, config: Config, who: str) -> None:
        """Something was changed.

        Args:
            section: what.
            config: in effect from now on.
            who: changed it.
        """
        if self.file is None:
            return
        base = said(self.file, section)
        value = said(config, section)
        if any(key.partition(".")[0] == section for key in hidden_settings(config)):
            _log.warning(
                "runtime change of [%s] not persisted: the section contains a secret", section
            )
            value = base
        change = OverrideRecord(int(self._now()), who, section, value, base)
        self._changes[section] = change
        self._write(lambda connection: records.add(connection, change))

    def disregard(self) -> None:
        """The file counts, until something is changed again."""
        self._changes.clear()
