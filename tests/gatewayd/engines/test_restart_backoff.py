"""Restart backoff: early deaths are restarted at once, but not for ever."""

from __future__ import annotations

from gatewayd.engines.replicas.restart_backoff import RestartBackoff


def test_five_may_die_young_in_a_row_and_then_each_waits_longer() -> None:
    setbacks = RestartBackoff()
    pauses = []
    for _ in range(8):
        setbacks.record(0.5)
        pauses.append(setbacks.pause())
    assert pauses[:5] == [0.0] * 5
    assert 0 < pauses[5] < pauses[6] < pauses[7]
    assert not setbacks.are_too_many
    setbacks.record(60.0)
    assert setbacks.pause() == 0.0


def test_three_that_never_serve_are_too_many() -> None:
    setbacks = RestartBackoff()
    for is_last in (False, False, True):
        setbacks.record(None)
        assert setbacks.pause() > 0
        assert setbacks.are_too_many == is_last
    setbacks.record(0.1)
    assert not setbacks.are_too_many
