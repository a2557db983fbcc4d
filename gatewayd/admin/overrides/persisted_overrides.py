"""Overrides: persisted runtime changes on top of the configuration file."""

from __future__ import annotations

import logging
from collections.abc import Callable

from sqlalchemy import Connection

from gatewayd.admin.overrides import records
from gatewayd.admin.overrides.deployment_records import DEPLOYMENT
from gatewayd.admin.overrides.model_overrides import SECTION
from gatewayd.admin.overrides.records import OverrideRecord
from gatewayd.admin.overrides.sections import value_of, with_value
from gatewayd.config.chosen_strategies import hidden_settings
from gatewayd.config.tables import Config

_log = logging.getLogger(__name__)

_OF_MODELS = "models."
"""Begins the sections of models in the store, such as ``models.small:scheduler``."""


def _is_of(section: str, prefix: str) -> bool:
    if not prefix:
        return not section.startswith((_OF_MODELS, SECTION, DEPLOYMENT))
    # Names of models may have colons, sections of the configuration have none.
    return section.startswith(prefix) and ":" not in section.removeprefix(prefix)


class Overrides:
    """Runtime changes of one daemon.

    Args:
        changes: the last of each section, from the store.
        write: writes a row without waiting.
        now: Unix time.
        prefix: of the sections of one model in the store; empty for those of ``[model]``.

    Attributes:
        file: the configuration file's content.
    """

    def __init__(
        self,
        changes: list[OverrideRecord],
        write: Callable[[Callable[[Connection], object]], None],
        now: Callable[[], float],
        prefix: str = "",
    ) -> None:
        self._all = changes
        self._prefix = prefix
        self._changes = {
            change.section.removeprefix(prefix): change._replace(
                section=change.section.removeprefix(prefix)
            )
            for change in changes
            if _is_of(change.section, prefix)
        }
        self._write = write
        self._now = now
        self.file: Config | None = None

    def apply(self, file: Config) -> Config:
        """Apply the overrides to a configuration file, except where it has changed since."""
        config = file
        for section, change in self._changes.items():
            try:
                base = value_of(file, section)
                # An operator has changed it back, or the file says the same by now.
                if change.value == base:
                    continue
                if base != change.base:
                    _log.warning(
                        "runtime change of [%s] dropped: the configuration file has changed since",
                        section,
                    )
                    continue
                config = with_value(config, section, change.value)
            # Another version may have written sections or values that this one does not know.
            except (AttributeError, KeyError, ValueError) as error:
                _log.warning("runtime change of [%s] cannot be applied: %s", section, error)
                continue
            _log.warning(
                "runtime change of [%s] by %s overrides the configuration file",
                section,
                change.actor,
            )
        return config

    def persist(self, section: str, config: Config, who: str) -> None:
        """Persist the change of a section.

        Args:
            section: the changed section.
            config: the configuration from now on.
            who: the operator.
        """
        if self.file is None:
            return
        base = value_of(self.file, section)
        value = value_of(config, section)
        if any(key.partition(".")[0] == section for key in hidden_settings(config)):
            _log.warning(
                "runtime change of [%s] not persisted: the section contains a secret", section
            )
            # Written nevertheless: an earlier row would otherwise apply at the next start.
            value = base
        change = OverrideRecord(int(self._now()), who, section, value, base)
        self._changes[section] = change
        row = change._replace(section=self._prefix + section)
        self._write(lambda connection: records.add(connection, row))

    def of_model(self, name: str) -> Overrides:
        """The runtime changes of one model of the catalogue."""
        return Overrides(self._all, self._write, self._now, f"{_OF_MODELS}{name}:")

    def copy(self) -> Overrides:
        """The present changes for a version on trial, whose own changes are not persisted."""
        copied = Overrides([], lambda write: None, self._now, self._prefix)
        copied._changes = dict(self._changes)
        return copied

    def clear(self) -> None:
        """Discard the overrides, so that the file applies until the next change."""
        self._changes.clear()
