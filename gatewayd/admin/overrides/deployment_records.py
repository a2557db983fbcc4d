"""Deployments of versions that are in effect, kept over restarts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection

from gatewayd.admin.overrides import records
from gatewayd.admin.overrides.records import OverrideRecord

DEPLOYMENT = "deployment:"
"""Begins the sections of deployments in the store, such as ``deployment:chat``."""


class DeploymentRecords:
    """The last record of each deployment.

    Args:
        changes: the last of each section, from the store.
        write: writes a row without waiting.
        now: Unix time.

    Attributes:
        present: those in effect at the start, by name of the model.
    """

    def __init__(
        self,
        changes: Sequence[OverrideRecord],
        write: Callable[[Callable[[Connection], object]], None],
        now: Callable[[], float],
    ) -> None:
        self._write = write
        self._now = now
        self.present: Mapping[str, Any] = {
            change.section.removeprefix(DEPLOYMENT): change.value
            for change in changes
            if change.section.startswith(DEPLOYMENT) and change.value is not None
        }

    def persist(self, name: str, value: object, who: str) -> None:
        """Record a deployment, or its end.

        Args:
            name: of the model.
            value: JSON; None if it has ended.
            who: the operator, or the rule.
        """
        self._write(self.row(name, value, who))

    def row(self, name: str, value: object, who: str) -> Callable[[Connection], None]:
        """Return what writes a record, as part of another change."""
        row = OverrideRecord(int(self._now()), who, DEPLOYMENT + name, value, None)
        return lambda connection: records.add(connection, row)
