"""Budget ledger of a running daemon: synchronous reservations, batched settlements.

A settlement that the store does not accept is retried; if too many are pending, requests that would
have to be counted are refused.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple

from gatewayd.errors import StoreUnavailable
from gatewayd.store.database import Database
from gatewayd.store.retry import until_done
from gatewayd.tenants.billing import budget_ledger_sql
from gatewayd.tenants.billing.costs import LedgerEntry, Settlement, Spent
from gatewayd.tenants.billing.crash_marks import Marks
from gatewayd.tenants.tamper_evidence.secret import ServerSecret
from gatewayd_engine.process.logs import MessageThrottle

_log = logging.getLogger(__name__)

_AT_ONCE = 256
"""Maximum per transaction: no other writer can proceed meanwhile."""

_MOST_LEFT = 10_000


class _Wanted(NamedTuple):
    """A reservation that waits to be written, with the future of its caller."""

    entry: LedgerEntry
    written: asyncio.Future[None]


class BudgetLedger:
    """Records the usage of tenants: reserves budgets, and writes settlements in the background.

    Attributes:
        marks: crash marks of running requests.
        uncharged_seconds: engine seconds of requests that reported no tokens; must stay 0.

    Args:
        database: database of the store.
        marks: see ``Marks``.
        secret: the server's, which seals reservations.
    """

    def __init__(self, database: Database, marks: Marks, secret: ServerSecret) -> None:
        self.marks = marks
        self.uncharged_seconds = 0.0
        self._throttle = MessageThrottle()
        self._database = database
        self._secret = secret
        self._left: list[Settlement] = []
        self._slots: dict[str, int] = {}
        self._writing: asyncio.Task[None] | None = None
        self._wanted: list[_Wanted] = []
        self._reserving: asyncio.Task[None] | None = None

    def check(self) -> None:
        """Check that further requests can be counted.

        Raises:
            StoreUnavailable: too many settlements are pending.
        """
        if len(self._left) >= _MOST_LEFT:
            raise StoreUnavailable("usage cannot be recorded now", retry_after=5)

    async def reserve(self, entry: LedgerEntry) -> int | None:
        """Reserve a request's maximum cost; it is on the disk when this returns.

        Returns:
            A slot for its crash marks, until it is settled; None if the disk has no room for it.

        Raises:
            InsufficientQuota: the remaining budget is too small.
            StoreUnavailable: the store cannot be written.
        """
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._wanted.append(_Wanted(entry, written))
        if self._reserving is None or self._reserving.done():
            self._reserving = asyncio.create_task(self._reserve(), name="reservations")
        try:
            # A future for each request, so that its cancellation leaves the transaction alone.
            await written
        except (asyncio.CancelledError, StoreUnavailable):
            self.withdraw(entry)  # it may have been written
            raise
        # After the commit: marks without a reservation would say nothing.
        slot = self.marks.allocate(entry.id)
        if slot is not None:
            self._slots[entry.id] = slot
        return slot

    def settle(self, entry: LedgerEntry, spent: Spent) -> Spent:
        """Charge a request that has ended.

        Returns:
            The charge: ``spent``, or all prompt tokens if engines computed without reporting any.
        """
        # An engine that reports no tokens must not make its time free; see ADR 0048.
        if spent.engine_seconds > 0 and not spent.prompt_tokens:
            spent = self._floored(entry, spent)
        self._settle(entry, spent)
        return spent

    def withdraw(self, entry: LedgerEntry) -> None:
        """Cancel the reservation of a request that never ran."""
        self._settle(entry, None)

    def _floored(self, entry: LedgerEntry, spent: Spent) -> Spent:
        """Charge the whole prompt for engine time without reported tokens, and log an error."""
        self.uncharged_seconds += spent.engine_seconds
        if self._throttle.should_log(entry.asked.endpoint):
            _log.error(
                "request %s used %.3f s of engine time but reported no tokens: charging its "
                "%d prompt tokens",
                entry.asked.request_id,
                spent.engine_seconds,
                entry.asked.prompt_tokens,
            )
        return spent._replace(prompt_tokens=entry.asked.prompt_tokens, cached_tokens=0)

    def _settle(self, entry: LedgerEntry, spent: Spent | None) -> None:
        # Appended before the task is looked at: a running one writes it, too.
        self._left.append(Settlement(entry, spent))
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write(), name="ledger")

    async def flush(self) -> None:
        """Wait until all settlements are on the disk."""
        while self._left and self._writing is not None:
            await asyncio.wait([self._writing])

    def close(self, submit: Callable[[list[Settlement]], object]) -> None:
        """Stop the background tasks, and hand pending settlements to the final writer."""
        if self._writing is not None:
            # The outcome of its transaction is unknown: settling twice has no effect.
            self._writing.cancel()
        if self._reserving is not None:
            self._reserving.cancel()
        if self._left:
            submit(self._left)
        self.marks.close()

    async def _reserve(self) -> None:
        """Write waiting reservations; those that arrive meanwhile form the next transaction."""
        while self._wanted:
            some, self._wanted = self._wanted[:_AT_ONCE], self._wanted[_AT_ONCE:]
            try:
                await self._reserve_together(some)
            except asyncio.CancelledError:
                # Their callers wait for futures, not for this task.
                for _, written in (*some, *self._wanted):
                    written.cancel()
                raise

    async def _reserve_together(self, some: Sequence[_Wanted]) -> None:
        """Write reservations in one transaction; if that fails, each in its own."""
        # A cancelled one was withdrawn already: written now, it would never be released.
        some = [one for one in some if not one.written.done()]
        if not some:
            return
        told: Sequence[Exception | None]
        try:
            entries = [one.entry for one in some]
            told = await self._database.write(
                lambda connection: budget_ledger_sql.reserve(connection, entries, self._secret)
            )
        except StoreUnavailable as error:
            told = [error] * len(some)
        except Exception as error:  # noqa: BLE001 - raised in the caller
            if len(some) > 1:  # one invalid reservation must not fail the others
                for one in some:
                    await self._reserve_together([one])
                return
            told = [error]
        for (_, written), refusal in zip(some, told, strict=True):
            # Cancelled during the write: its withdrawal is queued behind this commit.
            if written.done():
                continue
            if refusal is None:
                written.set_result(None)
            else:
                written.set_exception(refusal)

    async def _write(self) -> None:
        while self._left:
            # Removed only once written: `close` hands over what is left.
            some = self._left[:_AT_ONCE]
            await until_done(
                lambda some=some: self._database.write(  # type: ignore[misc]
                    lambda connection: budget_ledger_sql.settle(connection, some, self._secret)
                )
            )
            del self._left[: len(some)]
            for settled in some:
                # Marks last until the settlement is on the disk.
                slot = self._slots.pop(settled.entry.id, None)
                if slot is not None:
                    self.marks.free(slot)
