"""Responses that go on without a client."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from sqlalchemy import Connection

from gatewayd.errors import InvalidRequest
from gatewayd.http.answer import Answer
from gatewayd.http.asgi import ClientGone
from gatewayd.responses import records
from gatewayd.responses.body import failed
from gatewayd.responses.run import Progress
from gatewayd.store.again import until_done
from gatewayd.store.database import Database
from gatewayd_hooks.protocols import Refusal

_log = logging.getLogger(__name__)


class Background:
    """Runs them, in tasks of its own.

    Args:
        database: where they are kept.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._running: dict[str, asyncio.Task[None]] = {}

    async def start(self) -> None:
        """What ran when the last process ended has failed."""
        if count := await self._database.write(records.fail_running):
            _log.warning("%d responses in the background were lost with the last process", count)

    async def stop(self) -> None:
        """End them; the next start says so of each."""
        tasks = list(self._running.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def begin(self, answer: Answer, body: dict[str, Any]) -> None:
        """Go on with a response whose row is there."""
        progress = Progress(answer, body)
        task = asyncio.create_task(self._run(answer, progress), name=body["id"])
        self._running[body["id"]] = task
        task.add_done_callback(lambda _: self._running.pop(body["id"]))

    async def cancel(self, response_id: str) -> dict[str, Any]:
        """End one; once it is over nothing changes.

        Raises:
            NotFound: there is no such response.
            InvalidRequest: it has a client.
        """

        def end(connection: Connection) -> dict[str, Any]:
            body = records.find(connection, response_id)
            if not body["background"]:
                raise InvalidRequest(
                    f"the response {response_id} is not in the background; close its connection",
                    param="response_id",
                )
            if body["status"] in records.RUNNING:
                body = {**body, "status": "cancelled"}
                records.replace(connection, body)
            return body

        body = await self._database.write(end)
        await self.drop(response_id)
        return body

    async def drop(self, response_id: str) -> None:
        """Stop the work on one, if there is any; its row says so, or is gone."""
        if (task := self._running.get(response_id)) is not None:
            task.cancel()
            await asyncio.wait([task])

    async def wait(self, response_id: str) -> None:
        """Until nobody works on one."""
        if (task := self._running.get(response_id)) is not None:
            await asyncio.wait([task])

    async def _run(self, answer: Answer, progress: Progress) -> None:
        try:
            await progress.finish()
        except (Refusal, ClientGone):
            pass  # the body says so
        except Exception:  # noqa: BLE001 - its row must say so
            _log.exception("response %s failed", progress.body["id"])
            progress.body = failed(progress.body, "the gateway made a mistake; it is logged")
        finally:
            answer.close()
        await until_done(
            lambda: self._database.write(
                lambda connection: records.replace(connection, progress.body)
            )
        )
