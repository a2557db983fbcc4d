"""Store clock: believed time while the wall clock is set."""

from __future__ import annotations

import logging

import pytest

from gatewayd.store.clock import StoreClock

DAY, YEAR = 86_400.0, 365 * 86_400.0
START = 1_800_000_000.0


class Hands:
    """Two clocks: somebody sets the first."""

    def __init__(self) -> None:
        self.wall, self.uptime = START, 50.0

    def pass_by(self, seconds: float) -> None:
        self.wall += seconds
        self.uptime += seconds

    def clock(self, last: float | None = None) -> StoreClock:
        return StoreClock(last, wall=lambda: self.wall, uptime=lambda: self.uptime)


@pytest.fixture
def hands() -> Hands:
    return Hands()


def test_a_steady_clock_is_believed(hands: Hands) -> None:
    clock = hands.clock()
    hands.pass_by(3 * DAY)  # nobody asked meanwhile, as in a laptop that sleeps
    assert clock.now() == hands.wall
    assert clock.is_steady


@pytest.mark.parametrize("seconds", [-300.0, 1.0, 300.0])
def test_a_small_step_is_believed_at_once(hands: Hands, seconds: float) -> None:
    clock = hands.clock()
    hands.wall += seconds
    assert clock.now() == hands.wall
    assert clock.is_steady


@pytest.mark.parametrize("jump", [YEAR, -YEAR])
def test_a_jump_and_back_moves_nothing(
    hands: Hands, jump: float, caplog: pytest.LogCaptureFixture
) -> None:
    clock = hands.clock()
    hands.wall += jump
    for _ in range(59):
        hands.pass_by(60)
        assert clock.now() == START + hands.uptime - 50
        assert not clock.is_steady
    hands.wall -= jump
    assert clock.now() == hands.wall
    assert clock.is_steady
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


@pytest.mark.parametrize("jump", [YEAR, -YEAR])
def test_a_jump_that_stays_for_an_hour_is_believed(hands: Hands, jump: float) -> None:
    clock = hands.clock()
    hands.wall += jump
    clock.now()
    hands.pass_by(3599)
    assert clock.now() == hands.wall - jump
    hands.pass_by(1)
    assert clock.now() == hands.wall
    assert clock.is_steady


def test_each_further_jump_has_its_own_hour(hands: Hands) -> None:
    clock = hands.clock()
    for _ in range(5):
        hands.wall += YEAR
        clock.now()
        hands.pass_by(3000)
    assert clock.now() == hands.wall - 5 * YEAR


@pytest.mark.parametrize("jump", [YEAR, -YEAR])
def test_a_life_that_begins_with_a_wrong_clock_goes_on_from_the_last_one(
    hands: Hands, jump: float
) -> None:
    hands.wall += jump
    clock = hands.clock(last=START)
    hands.pass_by(60)
    assert clock.now() == START + 60
    assert not clock.is_steady
    hands.wall -= jump
    assert clock.now() == START + 60 == hands.wall
    assert clock.is_steady


def test_a_night_without_a_daemon_is_no_jump(hands: Hands) -> None:
    clock = hands.clock(last=START - DAY / 2)
    assert clock.now() == hands.wall


def test_what_is_written_down_is_never_over_too_early(hands: Hands) -> None:
    monday = hands.clock(last=START - 3 * DAY)  # after a weekend: judged by Friday's time
    assert (monday.now(), monday.stamp()) == (START - 3 * DAY, START)
    hands.wall = 0.0
    unset = hands.clock(last=START)  # a machine without a battery: the wall clock is behind
    assert unset.stamp() == unset.now() == START
