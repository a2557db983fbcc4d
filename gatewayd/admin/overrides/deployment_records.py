"""Deployments of versions that are in effect, kept over restarts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gatewayd.admin.overrides.records import OverrideJournal, OverrideRecord

DEPLOYMENT = "deployment:"
"""Begins the sections of deployments in the store, such as ``deployment:chat``."""


class DeploymentRecords:
    """The last record of each deployment.

    Args:
        journal: of all changes.

    Attributes:
        present: those in effect at the start, by name of the model.
    """

    def __init__(self, journal: OverrideJournal) -> None:
        self._journal = journal
        self.present: Mapping[str, Any] = {
            name: change.value
            for name, change in journal.latest(DEPLOYMENT).items()
            if change.value is not None
        }

    def persist(self, name: str, value: object, who: str) -> None:
        """Record a deployment, or its end.

        Args:
            name: of the model.
            value: JSON; None if it has ended.
            who: the operator, or the rule.
        """
        self._journal.add(self.record(name, value, who))

    def record(self, name: str, value: object, who: str) -> OverrideRecord:
        """Return the record of a deployment, as part of another change."""
        return self._journal.record(who, DEPLOYMENT + name, value)
