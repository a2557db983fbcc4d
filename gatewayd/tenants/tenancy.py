"""Tenants of a store: who may come in, the ledger, and the way to change either."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine

from gatewayd.store.database import Database
from gatewayd.store.faults import StoreError
from gatewayd.tenants import audit, ledger_records, marks, records, usage_sums
from gatewayd.tenants.actions import Action
from gatewayd.tenants.changes import Desk
from gatewayd.tenants.costs import Settlement
from gatewayd.tenants.directory import Directory
from gatewayd.tenants.ledger import Ledger
from gatewayd.tenants.marks import Marks
from gatewayd.tenants.secret import Secret, secret_of

_log = logging.getLogger(__name__)

_PRUNED_AT_ONCE = 1000
_BROKEN = "audit.broken"


class Tenancy:
    """Of a running daemon.

    Attributes:
        directory: who may come in.
        ledger: of what is used.

    Args:
        database: of the store.
        folder: of the store.
        secret: the server's.
        believed: Unix time by which budgets count: a clock that has just jumped begins no period.
    """

    def __init__(
        self,
        database: Database,
        folder: Path,
        secret: Secret,
        believed: Callable[[], float] = time.time,
    ) -> None:
        self.ledger = Ledger(database, Marks(folder / marks.NAME))
        self.directory = Directory(secret, self.ledger, believed=believed)
        self._database = database
        self._secret = secret
        self._head = folder / audit.NAME
        self._believed = believed
        self._changing = asyncio.Lock()

    def load(self, connection: Connection) -> None:
        """Take in what the store has."""
        self.directory.load(records.everything(connection))

    async def act(self, action: Action, params: Mapping[str, str], body: object, actor: str) -> Any:  # noqa: ANN401 - JSON
        """Do something; a change is on the disk and in force when this returns.

        Raises:
            GatewayError: it is refused, or the store cannot be used.
        """

        def work(connection: Connection) -> Any:  # noqa: ANN401 - JSON
            return action.run(self._desk(connection, actor), params, body)

        if not action.is_change:
            return await self._database.read(work)
        async with self._changing:
            answer = await self._database.write(work)
            everything, head = await self._database.read(
                lambda c: (records.everything(c), audit.head_of(c))
            )
            self.directory.load(everything)
            await asyncio.to_thread(audit.keep, self._secret, self._head, head)
        return answer

    async def note(self, actor: str, action: str, target: str, detail: dict[str, Any]) -> None:
        """Put a change on record that was made outside of the store; it is on the disk then.

        Raises:
            GatewayError: the store cannot be used.
        """

        def work(connection: Connection) -> audit.Head:
            self._desk(connection, actor).note(action, target, **detail)
            return audit.head_of(connection)

        async with self._changing:
            head = await self._database.write(work)
            await asyncio.to_thread(audit.keep, self._secret, self._head, head)

    def has_tenant(self, name: str) -> bool:
        """Whether there is one of that name, or was since the start: it may have pages yet."""
        return self.directory.has_account(name)

    def _desk(self, connection: Connection, actor: str) -> Desk:
        now, believed = int(time.time()), int(self._believed())
        return Desk(connection, self._secret, self._head, now, actor, believed)

    async def add_up(self, keep: int) -> None:
        """Leave so many rows of usage that are of single requests; older ones become sums."""
        left = await self._database.read(lambda c: usage_sums.num_over(c, keep))
        while left > 0:
            some = min(left, _PRUNED_AT_ONCE)
            await self._database.write(lambda c, some=some: usage_sums.add_up(c, some))  # type: ignore[misc]
            left -= some

    async def prune(self, before: float) -> None:
        """Delete usage that is older; what it adds up to stays in the budgets."""

        def remove(connection: Connection) -> int:
            return ledger_records.remove_older(connection, before, _PRUNED_AT_ONCE)

        while await self._database.write(remove) == _PRUNED_AT_ONCE:
            pass

    def close(self, submit: Callable[[Callable[[Connection], None]], object]) -> None:
        """Hand what is left to whoever writes last."""

        def hand(left: list[Settlement]) -> None:
            submit(lambda connection: ledger_records.settle(connection, left))

        self.ledger.close(hand)


def prepared(engine: Engine, folder: Path) -> Secret:
    """What is done once, before anybody is let in: the secret, the dead, the audit chain. Blocks.

    Raises:
        StoreError: the secret cannot be used.
    """
    secret, file = secret_of(folder, os.environ), folder / audit.NAME
    with engine.begin() as connection:
        if count := ledger_records.recover(connection, marks.known(folder / marks.NAME)):
            _log.warning("settled %d requests that ran when the last process died", count)
        fault = audit.fault(connection, secret, file)
        head = audit.head_of(connection)
        if fault is not None:
            _log.error("the audit of the store %s is not whole: %s", folder, fault)
            # What comes next would hide an end that was cut off.
            head = _noted(connection, secret, fault)
    try:
        audit.keep(secret, file, head)
    except OSError as error:
        raise StoreError(f"{file} cannot be written: {error.strerror}") from error
    return secret


def _noted(connection: Connection, secret: Secret, fault: str) -> audit.Head:
    """Put a fault on record, once."""
    if audit.has(connection, _BROKEN, {"fault": fault}):
        return audit.head_of(connection)
    return audit.append(
        connection,
        secret,
        at=time.time(),
        actor="gatewayd",
        action=_BROKEN,
        target="audit",
        detail={"fault": fault},
    )


def act_offline(
    engine: Engine,
    folder: Path,
    action: Action,
    params: Mapping[str, str],
    body: object,
    actor: str,
) -> Any:  # noqa: ANN401 - JSON
    """Do something while no daemon runs. Blocks.

    Raises:
        GatewayError: it is refused.
        StoreError: the store cannot be used.
    """
    secret, file = prepared(engine, folder), folder / audit.NAME
    with engine.begin() as connection:
        now = int(time.time())
        desk = Desk(connection, secret, file, now, actor, now)
        answer = action.run(desk, params, body)
        head = audit.head_of(connection)
    if action.is_change:
        audit.keep(secret, file, head)
    return answer
