"""Audit log: operator actions are recorded, or the operator is told that they are not."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from gatewayd.admin.audit_log import AuditRecord
from gatewayd.admin.peer import Peer
from gatewayd.errors import InvalidRequest, StoreFull, StoreUnavailable
from tests.gatewayd.store_fixtures import copy_of, opened

SCOPE = {"extensions": {"gatewayd.peer": Peer(77, 5)}}


class Recorder:
    """Keeps rows, or cannot."""

    def __init__(self, *, is_full: bool = False) -> None:
        self.rows: list[Any] = []
        self._is_full = is_full

    async def record_change(
        self, actor: str, action: str, target: str, detail: dict[str, Any]
    ) -> None:
        if self._is_full:
            raise StoreFull("its disk has little left")
        self.rows.append((actor, action, target, detail))

    def has_tenant(self, name: str) -> bool:
        return name == "ant"


async def test_it_says_who_did_what_and_no_more_of_a_name_than_is_needed() -> None:
    recorder = Recorder()
    await AuditRecord(recorder)(SCOPE, "request.hold", "x" * 5000, tenant="ant")
    assert recorder.rows == [("uid 5, pid 77", "request.hold", "x" * 256, {"tenant": "ant"})]


async def test_what_cannot_be_put_on_record_was_done_nevertheless_and_says_so() -> None:
    with pytest.raises(
        StoreUnavailable,
        match="its audit record cannot be written: its disk",
    ):
        await AuditRecord(Recorder(is_full=True))(SCOPE, "admission.pause", "admission")


async def test_what_may_be_cut_is_on_record_as_it_begins_and_with_what_came_of_it() -> None:
    recorder = Recorder()
    async with AuditRecord(recorder).around_action(SCOPE, "prefix.evict", "ant", page=7) as told:
        assert [row[1:] for row in recorder.rows] == [("prefix.evict.begin", "ant", {"page": 7})]
        told["pages"] = 3
    assert recorder.rows[1][1:] == ("prefix.evict", "ant", {"page": 7, "pages": 3})
    assert len(recorder.rows) == 2


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (InvalidRequest("it knows no pins"), "it knows no pins"),
        (ValueError("odd"), "odd"),
        (asyncio.CancelledError(), "CancelledError"),
    ],
)
async def test_what_failed_is_on_record_as_failed(error: BaseException, why: str) -> None:
    recorder = Recorder()
    with pytest.raises(type(error)):
        async with AuditRecord(recorder).around_action(SCOPE, "model.unload", "nano"):
            raise error
    assert [row[1:] for row in recorder.rows] == [
        ("model.unload.begin", "nano", {}),
        ("model.unload.failed", "nano", {"why": why}),
    ]


async def test_a_full_store_stops_nobody_and_hides_no_failure() -> None:
    record, was_done = AuditRecord(Recorder(is_full=True)), False
    with pytest.raises(StoreUnavailable, match="the action was done"):
        async with record.around_action(SCOPE, "model.unload", "nano"):
            was_done = True
    assert was_done
    with pytest.raises(InvalidRequest):
        async with record.around_action(SCOPE, "model.unload", "nano"):
            raise InvalidRequest("no")


async def test_a_store_that_is_closed_meanwhile_is_no_mistake_of_the_daemon(
    fresh_store: Path, tmp_path: Path
) -> None:
    with opened(copy_of(fresh_store, tmp_path / "store")) as durable:
        record = AuditRecord(durable.tenancy)
        assert record.has_tenant("default")
        assert not record.has_tenant("unknown")
        await record(SCOPE, "admission.pause", "admission")
    with pytest.raises(StoreUnavailable, match=r"the action was done, .* the store is closed"):
        await record(SCOPE, "admission.resume", "admission")
    with pytest.raises(StoreUnavailable, match="the store is closed"):
        await durable.database.read(lambda connection: None)
