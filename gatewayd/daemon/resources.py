"""Persistent resources of the daemon: the store, files, batches, responses, and their routes."""

from __future__ import annotations

import asyncio
import contextlib
import logging

from starlette.routing import Route

from gatewayd.admin.overrides import records as override_records
from gatewayd.admin.overrides.deployment_records import DeploymentRecords
from gatewayd.admin.overrides.model_overrides import ModelOverrides
from gatewayd.admin.overrides.persisted_overrides import Overrides
from gatewayd.admin.overrides.records import OverrideRecord
from gatewayd.config.tables import Config
from gatewayd.errors import StoreUnavailable
from gatewayd.fairness.fair_queue import QueueStats
from gatewayd.http.asgi import App
from gatewayd.http.methods import route
from gatewayd.http.own_usage import OwnUsage
from gatewayd.http.services import Services
from gatewayd.resources.batches.open_batches import Batches
from gatewayd.resources.batches.routes import BatchCancel, BatchCreate, BatchList, BatchOne
from gatewayd.resources.batches.run import BatchLimits
from gatewayd.resources.expiry import Expiry
from gatewayd.resources.files import records as file_records
from gatewayd.resources.files.content_store import ContentStore
from gatewayd.resources.files.context import FileContext
from gatewayd.resources.files.routes import FileContent, FileCreate, FileDelete, FileList, FileOne
from gatewayd.resources.responses.background import Background
from gatewayd.resources.responses.conversations import Conversations
from gatewayd.resources.responses.event_routes import ResponseOne
from gatewayd.resources.responses.routes import (
    ResponseCancel,
    ResponseCount,
    ResponseCreate,
    ResponseDelete,
    ResponseInput,
)
from gatewayd.store import wal
from gatewayd.store.clock import StoreClock
from gatewayd.store.database import Database, connect
from gatewayd.store.disk_quota import DiskQuota
from gatewayd.store.errors import StoreError
from gatewayd.store.location import StoreLocation, lock_store
from gatewayd.store.schema import upgrade_schema
from gatewayd.tenants.tenancy import Tenancy, prepare_tenancy
from gatewayd.tracing.archive import Archive

_log = logging.getLogger(__name__)

_SWEEP_SECONDS = 60.0
_DAY = 86_400
_USAGE_SECONDS = 400 * _DAY
"""Retention of usage rows: a year, with time for late accounting."""


class PersistentResources:
    """The store of a daemon with its services: create, ``start``, ``stop``, then ``close``.

    Args:
        config: configuration of the daemon.

    Raises:
        StoreError: the store cannot be used; with the reason.
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        place = self._place = lock_store(config.store.path)
        try:
            self.clock = StoreClock(place.last_used)
            self.database, self.vault, self.tenancy, changes = _open(place, self.clock)
        except BaseException:
            place.close()
            raise
        written = (changes, self.database.submit, self.clock.now)
        self.overrides, journal = Overrides(*written), override_records.OverrideJournal(*written)
        self.added_models, self.deployments = ModelOverrides(journal), DeploymentRecords(journal)
        self.archive = Archive(
            self.database,
            self.clock,
            days=config.store.ledger_days,
            rows=config.store.ledger_rows,
        )
        self.room = DiskQuota(
            place.database,
            self.database,
            self.vault,
            limit=int(config.store.bytes),
            floor=int(config.store.free_bytes),
        )
        limits = BatchLimits(
            concurrency=config.batches.concurrency,
            open=config.batches.open,
            lines=config.batches.lines,
            line_bytes=int(config.server.body_bytes),
        )
        self.batches = Batches(self.database, self.vault, limits, self.room, self.clock)
        self._background = Background(self.database, most=config.responses.background)
        self._conversations = Conversations(self.database, int(config.server.body_bytes))
        self._app: App | None = None
        self._tasks: list[asyncio.Task[None]] = []

    def routes(self, services: Services) -> list[Route]:
        """Routes of all persistent resources."""
        files = FileContext(
            self.database,
            self.vault,
            self.room,
            self.clock,
            limit=int(self._config.files.bytes),
            only_local_pages=services.only_local_hosts,
        )
        return [
            route("/v1/files", GET=FileList(files), POST=FileCreate(files)),
            route("/v1/files/{file_id}", GET=FileOne(files), DELETE=FileDelete(files)),
            route("/v1/files/{file_id}/content", GET=FileContent(files)),
            route("/v1/batches", GET=BatchList(self.batches), POST=BatchCreate(self.batches)),
            route("/v1/batches/{batch_id}", GET=BatchOne(self.batches)),
            route("/v1/batches/{batch_id}/cancel", POST=BatchCancel(self.batches)),
            route("/v1/gateway/usage", GET=OwnUsage(self.database, self.room, self.clock.now)),
            *self._response_routes(services),
        ]

    def _response_routes(self, services: Services) -> list[Route]:
        database, background, conversations = self.database, self._background, self._conversations
        one = "/v1/responses/{response_id}"
        create = ResponseCreate(services, database, conversations, background, self.room)
        return [
            route("/v1/responses", POST=create),
            route("/v1/responses/input_tokens", POST=ResponseCount(services, conversations)),
            route(
                one,
                GET=ResponseOne(services, database, background),
                DELETE=ResponseDelete(database, background),
            ),
            route(f"{one}/cancel", POST=ResponseCancel(background)),
            route(f"{one}/input_items", GET=ResponseInput(database)),
        ]

    @property
    def queues(self) -> dict[str, QueueStats]:
        """Statistics of the queues of batches and stored conversations."""
        return {**self.batches.queues, "conversations": self._conversations.queue.stats}

    @property
    def refusals(self) -> dict[str, int]:
        """Numbers of batches and background responses refused by limits of a tenant."""
        return {
            "open_batches": self.batches.cap.num_refused,
            "background": self._background.cap.num_refused,
        }

    def set_app(self, app: App) -> None:
        """Set the app that runs batch lines: the routes without authentication."""
        self._app = app

    async def start(self) -> None:
        """Delete expired data, resume batches, and start the periodic tasks."""
        if self._app is None:
            raise RuntimeError("set_app must be called first")
        self._tasks = [
            asyncio.create_task(self._sweep(), name="sweep"),
            asyncio.create_task(self.archive.run(), name="archive"),
        ]
        await self._background.start()
        await self.batches.start(self._app, self.tenancy.directory)

    async def stop(self) -> None:
        """Stop batches, which the next start resumes, and the periodic tasks."""
        await self.batches.stop()
        await self._background.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def close(self) -> None:
        """Close the store after its last use."""
        # These two only submit work to the writer, for which the database's ``close`` waits.
        self.archive.flush()
        self.tenancy.close(self.database.submit)
        self.database.close()
        # The lock is last: no other process may open the store while this one writes.
        self._place.close()

    async def _sweep(self) -> None:
        config = self._config
        days = (config.responses.keep_days, config.batches.keep_days)
        expiry = Expiry(self.database, self.vault, self.clock, *(each * _DAY for each in days))
        while True:
            with contextlib.suppress(StoreUnavailable):  # logged where it was raised
                await self.tenancy.check()
                await expiry.sweep()
                await self.archive.prune()
                await self.tenancy.aggregate_usage(config.store.usage_rows)
                # Usage is deleted only by a clock that is trusted (ADR 0017).
                if self.clock.is_steady:
                    await self.tenancy.prune(self.clock.now() - _USAGE_SECONDS)
                await self.room.measure()
            if self.clock.is_steady:
                self._place.touch(self.clock.now())
            await asyncio.sleep(_SWEEP_SECONDS)


def _open(
    place: StoreLocation, clock: StoreClock
) -> tuple[Database, ContentStore, Tenancy, list[OverrideRecord]]:
    wal.log_bug()
    engine = connect(place.database)
    upgrade_schema(engine, place.database)
    begun = prepare_tenancy(engine, place.folder)
    try:
        vault = ContentStore(place.contents)
        with engine.connect() as connection:
            known = file_records.ids(connection)
        # Contents are written before their rows: one without a row is of a broken upload.
        if orphans := vault.clean(known):
            _log.info("deleted %d incomplete file contents", orphans)
    except OSError as error:
        raise StoreError(f"the store {place.folder} cannot be used: {error.strerror}") from error
    database = Database(engine)
    tenancy = Tenancy(database, place.folder, begun, clock.now)
    with engine.connect() as connection:
        tenancy.load(connection)
        changes = override_records.latest(connection)
    return database, vault, tenancy, changes
