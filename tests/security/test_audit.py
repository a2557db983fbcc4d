"""A record of changes that somebody has changed: edits, exchanges, and an end that is cut off.

A chain of seals alone does not show what was cut off its end, the usual hole of such records.
Beside it stand a sealed file, and what the store was told to make.
"""

from __future__ import annotations

import itertools
import random
import shutil
import sqlite3
from pathlib import Path

import pytest

from gatewayd.tenants import audit
from tests.gatewayd.durables import copy_of
from tests.gatewayd.tenants.test_audit import act, execute, fault

CHANGES = 6


@pytest.fixture(scope="module")
def recorded(fresh_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six changes: tenants, and keys of them."""
    folder = copy_of(fresh_store, tmp_path_factory.mktemp("security") / "store")
    for number in range(CHANGES // 2):
        act(folder, "POST", "/admin/tenants", {"tenant": f"t{number}"})
        act(folder, "POST", "/admin/keys", {"tenant": f"t{number}"})
    assert fault(folder) is None
    return folder


@pytest.fixture
def store(recorded: Path, tmp_path: Path) -> Path:
    return copy_of(recorded, tmp_path / "copy")


def renumbered(folder: Path, order: list[int]) -> None:
    """Rows in another order, under the numbers that belong there."""
    with sqlite3.connect(folder / "gatewayd.db") as connection:
        for place, seq in enumerate(order, 1):
            connection.execute("UPDATE audit SET seq = ? WHERE seq = ?", (-place, seq))
        connection.execute("UPDATE audit SET seq = -seq")
    connection.close()


def test_every_order_but_the_right_one_is_found(store: Path, tmp_path: Path) -> None:
    rng = random.Random(1)
    orders = [list(some) for some in itertools.permutations(range(1, CHANGES + 1))]
    for number, order in enumerate(rng.sample(orders, 12)):
        copy = copy_of(store, tmp_path / str(number))
        renumbered(copy, order)
        assert (fault(copy) is None) == (order == sorted(order)), order
        shutil.rmtree(copy)


@pytest.mark.parametrize("left", range(CHANGES))
@pytest.mark.parametrize("is_file_there", [True, False])
def test_every_end_that_is_cut_off_is_found(store: Path, left: int, is_file_there: bool) -> None:
    """Also all of it, together with the file that tells where it ended."""
    execute(store, f"DELETE FROM audit WHERE seq > {left}")
    if not is_file_there:
        (store / audit.NAME).unlink()
    assert fault(store) is not None


def test_an_older_end_is_no_way_back(store: Path) -> None:
    """The file of a day before, put back with the rows of that day."""
    before = (store / audit.NAME).read_bytes()
    act(store, "POST", "/admin/tenants", {"tenant": "later"})
    act(store, "POST", "/admin/keys", {"tenant": "later"})
    execute(store, f"DELETE FROM audit WHERE seq > {CHANGES}")
    (store / audit.NAME).write_bytes(before)
    assert fault(store) == "audit rows are missing: 6 tell of 8 tenants and keys"
