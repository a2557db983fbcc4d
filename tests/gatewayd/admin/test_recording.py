"""What an operator does is on record, or the operator is told that it is not."""

from __future__ import annotations

from typing import Any

import pytest

from gatewayd.admin.peer import Peer
from gatewayd.admin.recording import Record
from gatewayd.errors import StoreFull, StoreUnavailable

SCOPE = {"extensions": {"gatewayd.peer": Peer(77, 5)}}


class Recorder:
    """Keeps rows, or cannot."""

    def __init__(self, *, is_full: bool = False) -> None:
        self.rows: list[Any] = []
        self._is_full = is_full

    async def note(self, actor: str, action: str, target: str, detail: dict[str, Any]) -> None:
        if self._is_full:
            raise StoreFull("its disk has little left")
        self.rows.append((actor, action, target, detail))


async def test_it_says_who_did_what_and_no_more_of_a_name_than_is_needed() -> None:
    recorder = Recorder()
    await Record(recorder)(SCOPE, "request.hold", "x" * 5000, tenant="ant")
    assert recorder.rows == [("uid 5, pid 77", "request.hold", "x" * 256, {"tenant": "ant"})]


async def test_what_cannot_be_put_on_record_was_done_nevertheless_and_says_so() -> None:
    with pytest.raises(
        StoreUnavailable, match="it was done, and cannot be put on record: its disk"
    ):
        await Record(Recorder(is_full=True))(SCOPE, "admission.pause", "admission")
