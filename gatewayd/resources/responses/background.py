"""Background responses, which run without a client."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from sqlalchemy import Connection

from gatewayd.errors import (
    MISTAKE,
    ClientGone,
    InternalError,
    InvalidRequest,
    StoreUnavailable,
)
from gatewayd.fairness.tenant_cap import TenantCap
from gatewayd.http.protocols.answer import ProtocolAnswer
from gatewayd.resources.responses import records
from gatewayd.resources.responses.event_log import ResponseLog
from gatewayd.resources.responses.events import EventEncoder, end_of
from gatewayd.resources.responses.previous_responses import TruncationPoint
from gatewayd.resources.responses.run import ResponseProgress
from gatewayd.store.database import Database
from gatewayd.store.retry import until_done
from gatewayd_hooks.protocols import RequestRefusal

_logger = logging.getLogger(__name__)

_SECONDS = 5.0
"""Timeout for storing the end of a cancelled response."""
_RETRY_SECONDS = 5.0


class _Run:
    """A running background response.

    Attributes:
        tenant: its owner.
        progress: its progress.
        log: its events, for followers.
        numbers: numbering of its events.
        is_cancelled: whether a client has cancelled it.
        is_ending: whether it is complete and only has to be stored.
        task: the task that runs it.
    """

    def __init__(self, tenant: str, progress: ResponseProgress) -> None:
        self.tenant = tenant
        self.progress = progress
        self.log = ResponseLog()
        self.numbers = EventEncoder()
        self.is_cancelled = self.is_ending = False
        self.task: asyncio.Task[None] | None = None


class Background:
    """Runs background responses in tasks of its own.

    Attributes:
        cap: limit on running ones; ``start_response`` needs a reservation.

    Args:
        database: database of responses.
        most: maximum of a tenant at once.
    """

    def __init__(self, database: Database, *, most: int) -> None:
        self._database = database
        self._running: dict[str, _Run] = {}
        self.cap = TenantCap(
            most,
            "{held} responses run in the background; the maximum is {most}, [responses] "
            "background: wait until one has ended, or cancel one",
            reason="background",
            retry_after=_RETRY_SECONDS,
        )

    async def start(self) -> None:
        """Mark responses that the previous process left running as failed."""
        if count := await self._database.write(records.fail_running):
            _logger.warning(
                "%d background responses were lost when the previous process ended", count
            )

    async def stop(self) -> None:
        """Cancel them; the next start marks them as failed."""
        tasks = [run.task for run in self._running.values() if run.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def start_response(
        self,
        tenant: str,
        answer: ProtocolAnswer,
        body: dict[str, Any],
        chain_cut: TruncationPoint | None,
    ) -> ResponseLog:
        """Run a response that was reserved and whose row exists.

        Returns:
            Its events, from the first.
        """
        response_id: str = body["id"]
        run = self._running[response_id] = _Run(tenant, ResponseProgress(answer, body, chain_cut))
        run.log.add(*run.numbers.first(body))
        run.task = asyncio.create_task(self._run(answer, run), name=response_id)
        run.task.add_done_callback(lambda _: self._over(response_id))
        return run.log

    def log_of(self, response_id: str) -> ResponseLog | None:
        """Events of a running response, from the first; None if it does not run."""
        run = self._running.get(response_id)
        return None if run is None else run.log

    async def cancel(self, tenant: str, response_id: str) -> dict[str, Any]:
        """Cancel a tenant's response; no effect once it has ended.

        Raises:
            NotFound: the tenant has no such response.
            InvalidRequest: it is not a background response.
            StoreUnavailable: it has ended, and the store cannot be updated yet.
        """

        def find(connection: Connection) -> dict[str, Any]:
            return records.find(connection, tenant, response_id)

        # The row first, whether it runs or not: it says whether the tenant may cancel it.
        body = await self._database.read(find)
        if not body["background"]:
            raise InvalidRequest(
                f"the response {response_id} is not in the background; close its connection",
                param="response_id",
            )
        run = self._running.get(response_id)
        # Read again: it may have ended since the first read.
        if run is None or run.task is None:
            return await self._database.read(find)
        # A complete response is only being stored: cancelling the task would lose its output.
        if not (run.is_cancelled or run.is_ending):
            run.is_cancelled = True
            run.task.cancel()
        # Bounded, since the store may stay unavailable for long.
        await asyncio.wait([run.task], timeout=_SECONDS)
        if not run.task.done():
            raise StoreUnavailable("the response has ended, but the store cannot be updated yet")
        return await self._database.read(find)

    async def stop_deleted(self, response_id: str) -> None:
        """Stop a response whose row was deleted, if it runs."""
        run = self._running.get(response_id)
        if run is not None and run.task is not None:
            gone = f"there is no response {response_id!r}"
            told = {"type": "error", "code": "not_found", "message": gone, "param": "response_id"}
            # Before the task is cancelled: closing the log ends its followers.
            run.log.add(run.numbers.event(told))
            run.log.close()
            run.task.cancel()
            await asyncio.wait([run.task])

    def _over(self, response_id: str) -> None:
        run = self._running.pop(response_id)
        run.log.close()
        self.cap.release(run.tenant)

    async def _run(self, answer: ProtocolAnswer, run: _Run) -> None:
        progress = run.progress
        try:
            async for event in progress.events():
                run.log.add(run.numbers.event(event))
        except asyncio.CancelledError:
            # The daemon stops: the row keeps its status, which the next start marks as failed.
            if not run.is_cancelled:
                raise
            progress.cancel()
        except (RequestRefusal, ClientGone):
            pass  # the body has the error
        except Exception:
            _logger.exception("response %s failed", progress.body["id"])
            progress.fail(MISTAKE)
            answer.fail(InternalError(MISTAKE))
        finally:
            # Before the end is stored, which may take long: the generation holds limits.
            answer.close()
        # No await between the last event and this line: `cancel` finds it running or ending.
        run.is_ending = True
        kept = progress.kept()
        await until_done(
            lambda: self._database.write(lambda connection: records.replace(connection, kept))
        )
        # Only now that it is stored: a client that has read the end may continue from it.
        run.log.add(run.numbers.event(end_of(progress.body)))
