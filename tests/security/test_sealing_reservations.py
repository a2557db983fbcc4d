"""Running reservations: sealed during an upgrade to a sealing gateway."""

from __future__ import annotations

from gatewayd.store.database import connect
from gatewayd.tenants.tamper_evidence import seals
from gatewayd_migrations import steps
from tests.gatewayd.store_fixtures import opened
from tests.gatewayd.tenants.test_audit import act, execute
from tests.security.killed_store import EXACT, OLD, SPENT, Killed, X, Y, Z, put, state_now
from tests.security.test_seals import replaced, rows_of


def older(killed: Killed) -> None:
    """The store as the version without seals of reservations leaves it."""
    engine = connect(killed.folder / "gatewayd.db")
    secret = killed.seal(engine)
    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE budgets SET reserved_tags = NULL")
    engine.dispose()
    engine = connect(killed.folder / "gatewayd.db")
    with engine.begin() as connection:
        state = seals.state_of(connection, secret)
        assert state is not None
        totals = {kind: total for kind, total in state.totals.items() if kind in seals.TABLES}
        seals.put_state(connection, secret, state._replace(totals=totals))
        steps.downgrade(connection, "0010")
    engine.dispose()
    assert "seal" not in rows_of(killed.folder, "reservations")[0]


def test_an_upgrade_seals_what_runs_and_charges_it_exactly(killed: Killed) -> None:
    older(killed)
    with opened(killed.folder) as durable:
        assert durable.tenancy.num_faults == 0
    found = state_now(killed.folder)
    assert found.used["a"] == SPENT + EXACT[X.id] + EXACT[Y.id]
    assert {one: row[1] for one, row in found.usage.items() if one != OLD.id} == EXACT


def test_an_upgrade_charges_for_what_was_edited_or_deleted_before(killed: Killed) -> None:
    older(killed)
    execute(
        killed.folder,
        f"UPDATE reservations SET tokens = 10 WHERE id = '{X.id}'",
        f"DELETE FROM reservations WHERE id = '{Z.id}'",
    )
    with opened(killed.folder) as durable:
        assert durable.tenancy.num_faults
    found = state_now(killed.folder)
    assert found.used["a"] == SPENT + X.asked.tokens + Y.asked.tokens
    assert found.used["b"] == Z.asked.tokens


def test_after_an_upgrade_nothing_without_a_seal_is_taken_on(killed: Killed) -> None:
    (row,) = [row for row in rows_of(killed.folder, "reservations") if row["id"] == Z.id]
    older(killed)
    with opened(killed.folder):
        """The upgrade."""
    before = state_now(killed.folder)
    forged = replaced("reservations", row | {"id": "use_n", "seal": None})
    for accept in (False, True):
        if accept:
            execute(killed.folder, "DELETE FROM seals", "DELETE FROM seal_state")
            assert act(killed.folder, "POST", "/admin/audit/accept")["accepted"]
        put(killed.folder, forged)
        with opened(killed.folder) as durable:
            assert durable.tenancy.num_faults == 1
        assert state_now(killed.folder).used == before.used
