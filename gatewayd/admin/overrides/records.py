"""Rows of overrides: the last of each section applies, earlier ones are its history."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from sqlalchemy import Connection, delete, func, insert, select

from gatewayd.store.tables import overrides

KEPT = 100
"""Maximum rows of a section."""


class OverrideRecord(NamedTuple):
    """A runtime change.

    Attributes:
        at: Unix time.
        actor: the operator.
        section: section of the configuration.
        value: the new value.
        base: the value in the configuration file at that time.
    """

    at: int
    actor: str
    section: str
    value: Any
    base: Any


class OverrideJournal:
    """The changes of one daemon: the last of each section at the start, and later ones.

    Args:
        changes: from the store.
        write: writes rows without waiting.
        now: Unix time.
    """

    def __init__(
        self,
        changes: Sequence[OverrideRecord],
        write: Callable[[Callable[[Connection], object]], None],
        now: Callable[[], float],
    ) -> None:
        self._changes = changes
        self._write = write
        self._now = now

    def latest(self, prefix: str) -> dict[str, OverrideRecord]:
        """Return the changes at the start of sections with a prefix, by the rest of their names."""
        return {
            change.section.removeprefix(prefix): change
            for change in self._changes
            if change.section.startswith(prefix)
        }

    def record(self, who: str, section: str, value: Any, base: Any = None) -> OverrideRecord:  # noqa: ANN401 - JSON
        """Return the record of a change that is made now."""
        return OverrideRecord(int(self._now()), who, section, value, base)

    def add(self, *changes: OverrideRecord) -> None:
        """Write changes that are made together, in one transaction."""

        def write(connection: Connection) -> None:
            for change in changes:
                add(connection, change)

        self._write(write)


def add(connection: Connection, change: OverrideRecord) -> None:
    """Add a change, and delete the oldest ones of its section beyond the maximum."""
    row = change._replace(value=json.dumps(change.value), base=json.dumps(change.base))
    connection.execute(insert(overrides).values(row._asdict()))
    ours = overrides.c.section == change.section
    kept = select(overrides.c.number).where(ours).order_by(overrides.c.number.desc()).limit(KEPT)
    connection.execute(delete(overrides).where(ours, overrides.c.number.not_in(kept)))


def history(connection: Connection) -> list[OverrideRecord]:
    """All changes, oldest first."""
    return _changes(connection, select(*_COLUMNS).order_by(overrides.c.number))


def latest(connection: Connection) -> list[OverrideRecord]:
    """The last change of each section, in order of time."""
    last = select(func.max(overrides.c.number)).group_by(overrides.c.section)
    query = select(*_COLUMNS).where(overrides.c.number.in_(last)).order_by(overrides.c.number)
    return _changes(connection, query)


_COLUMNS = [overrides.c[name] for name in OverrideRecord._fields]


def _changes(connection: Connection, query: Any) -> list[OverrideRecord]:  # noqa: ANN401 - a select
    found = [OverrideRecord(*row) for row in connection.execute(query)]
    return [one._replace(value=json.loads(one.value), base=json.loads(one.base)) for one in found]
