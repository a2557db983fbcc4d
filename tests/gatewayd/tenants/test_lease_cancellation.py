"""Lease cancellation: one that fails to end keeps no other running."""

from __future__ import annotations

import logging

import pytest

from gatewayd.tenants.principal import Lease, revoked


def test_what_cannot_end_keeps_nothing_else_running(caplog: pytest.LogCaptureFixture) -> None:
    lease, ended = Lease(), set[int]()

    def ends(number: int) -> None:
        if number % 3 == 0:
            raise RuntimeError(f"number {number} is stuck")
        ended.add(number)

    for number in range(30):
        lease.add(lambda number=number: ends(number))  # type: ignore[misc]
    with caplog.at_level(logging.ERROR):
        lease.end(revoked)
    assert ended == {number for number in range(30) if number % 3}
    told = {str(record.exc_info[1]) for record in caplog.records if record.exc_info}
    assert told == {f"number {number} is stuck" for number in range(0, 30, 3)}
    assert lease.is_over
