"""``disk``: equals a dict over restarts, torn tails and flipped bits."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.plugins.tier_disk.disks import (
    fetched,
    files,
    key,
    open_disk,
    page,
)

KEYS = st.integers(0, 30)


class DiskMachine(RuleBasedStateMachine):
    """Against a dict, through restarts, torn tails and flipped bits."""

    folder: Path
    made = 0

    @initialize()
    def begin(self) -> None:
        DiskMachine.made += 1
        self.path = self.folder / str(DiskMachine.made)
        self.disk = open_disk(self.path)
        self.known: set[int] = set()
        self.has_lost = False

    @rule(number=KEYS)
    def put(self, number: int) -> None:
        given = page(number)
        assert self.disk.put(key(number), given) == []
        given[:] = 0
        self.known.add(number)

    @rule(number=KEYS)
    def get(self, number: int) -> None:
        found = fetched(self.disk, number)
        if found is not None:
            assert number in self.known
            assert np.array_equal(found, page(number))
        elif not self.has_lost:
            assert number not in self.known

    @rule()
    def restart(self) -> None:
        self.disk.close()
        self.disk = open_disk(self.path)

    @rule(part=st.floats(0, 1))
    def tear(self, part: float) -> None:
        self.disk.close()
        for path in files(self.path):
            os.truncate(path, int(path.stat().st_size * part))
            self.has_lost = True
        self.disk = open_disk(self.path)

    @rule(place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
    def flip(self, place: float, bit: int) -> None:
        self.disk.close()
        for path in files(self.path):
            data = bytearray(path.read_bytes())
            if data:
                data[int(place * len(data))] ^= 1 << bit
                path.write_bytes(data)
                self.has_lost = True
        self.disk = open_disk(self.path)
        for number in self.known:
            found = fetched(self.disk, number)
            assert found is None or np.array_equal(found, page(number))

    @invariant()
    def counts(self) -> None:
        if hasattr(self, "disk"):
            has = [n for n in range(31) if self.disk.find([key(n)])]
            assert len(has) == len(self.disk)
            assert set(has) <= self.known
            if not self.has_lost:
                assert set(has) == self.known

    def teardown(self) -> None:
        if hasattr(self, "disk"):
            self.disk.close()


def test_it_is_a_dict_that_may_forget(tmp_path: Path) -> None:
    from hypothesis.stateful import run_state_machine_as_test

    machine = type("Machine", (DiskMachine,), {"folder": tmp_path})
    run_state_machine_as_test(
        machine,
        settings=settings(stateful_step_count=25),
    )
