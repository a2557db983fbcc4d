"""Migrations: every path through the revisions ends at the program's tables."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import Engine, inspect

from gatewayd.store.database import connect
from gatewayd.store.tables import metadata
from gatewayd_migrations import HEAD, steps


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    return connect(tmp_path / "some % name.db")


def names(engine: Engine) -> set[str]:
    return set(inspect(engine).get_table_names())


def test_the_newest_revision_is_the_one_that_is_stated() -> None:
    assert steps.revisions()[-1] == HEAD


@pytest.mark.parametrize("first", ["base", *steps.revisions()])
def test_an_upgrade_from_every_revision_gives_the_programs_tables(
    engine: Engine, first: str
) -> None:
    with engine.begin() as connection:
        if first != "base":
            steps.upgrade(connection, first)
        steps.upgrade(connection)
        steps.check(connection, metadata)
    assert names(engine) == {*metadata.tables, "alembic_version"}
    engine.dispose()


@pytest.mark.parametrize("revision", ["base", *steps.revisions()])
def test_every_revision_can_be_undone(engine: Engine, revision: str) -> None:
    with engine.begin() as connection:
        steps.upgrade(connection)
        steps.downgrade(connection, revision)
        steps.upgrade(connection)
        steps.check(connection, metadata)
        steps.downgrade(connection, "base")
    assert names(engine) == {"alembic_version"}
    engine.dispose()


def test_what_was_there_before_tenants_belongs_to_the_default_one(engine: Engine) -> None:
    with engine.begin() as connection:
        steps.upgrade(connection, "0001")
        for statement in (
            "INSERT INTO files VALUES ('file-1', 1, NULL, 2, 'in.jsonl', 'batch')",
            "INSERT INTO batches (id, created_at, endpoint, input_file_id, completion_window, "
            "status, expires_at, total) VALUES ('batch_1', 1, '/v1/x', 'file-1', '24h', "
            "'in_progress', 9, 2)",
            "INSERT INTO batch_results VALUES ('batch_1', 1, 1, x'7b7d', 3, 0, 4, 0)",
            "INSERT INTO responses VALUES ('resp_1', 1, 'completed', NULL, '{}', '[]')",
        ):
            connection.exec_driver_sql(statement)
    with engine.begin() as connection:
        steps.upgrade(connection)
        for table in ("files", "batches", "responses"):
            found = connection.exec_driver_sql(f"SELECT tenant FROM {table}").scalars().all()
            assert found == ["default"]
        (batch,) = connection.exec_driver_sql("SELECT key_id, status, total FROM batches").all()
        assert tuple(batch) == (None, "in_progress", 2)
        count = "SELECT count(*) FROM batch_results"
        assert connection.exec_driver_sql(count).scalar_one() == 1
        assert connection.exec_driver_sql("SELECT id FROM tenants").scalars().all() == ["default"]
    with engine.begin() as connection:
        steps.downgrade(connection, "0001")
        assert connection.exec_driver_sql(count).scalar_one() == 1
        assert connection.exec_driver_sql("SELECT * FROM files").one()[-1] == "batch"
    engine.dispose()


def test_tenants_of_before_keep_what_they_could_and_what_they_have_is_counted(
    engine: Engine,
) -> None:
    with engine.begin() as connection:
        steps.upgrade(connection, "0008")
        for statement in (
            "INSERT INTO tenants (id, created_at) VALUES ('old', 1)",
            "INSERT INTO files VALUES ('file-1', 1, NULL, 2000, 'é', 'batch', 'old')",
            "INSERT INTO responses VALUES ('resp_1', 1, 'completed', NULL, '{}', '[\"é\"]', 'old')",
            "INSERT INTO responses VALUES ('resp_2', 1, 'completed', NULL, '{}', '[]', 'default')",
            "INSERT INTO batches (id, created_at, endpoint, input_file_id, completion_window, "
            "status, expires_at, metadata, tenant) VALUES ('batch_1', 1, '/v1/x', 'file-1', '24h', "
            "'in_progress', 9, '{}', 'old')",
            "INSERT INTO batch_results VALUES ('batch_1', 1, 1, x'7b7d', 3, 0, 4, 0)",
            "INSERT INTO batch_results VALUES ('batch_1', 2, 1, x'7b7d7b', 3, 0, 4, 0)",
            "INSERT INTO usage (id, request_id, tenant, endpoint, model, created_at, "
            "prompt_tokens, cached_tokens, completion_tokens, outcome, micros, total_ms) "
            "VALUES ('use_1', 'r', 'old', 'e', 'm', 1, 1, 0, 1, 'stop', 0, 1)",
        ):
            connection.exec_driver_sql(statement)
    with engine.begin() as connection:
        steps.upgrade(connection)
        rights = "SELECT service_class, retention_priority, retention_seconds, store_bytes"
        for tenant in ("old", "default"):
            row = connection.exec_driver_sql(f"{rights} FROM tenants WHERE id = '{tenant}'").one()
            assert tuple(row) == ("realtime", 100, 86_400, None)
        connection.exec_driver_sql("INSERT INTO tenants (id, created_at) VALUES ('new', 1)")
        row = connection.exec_driver_sql(f"{rights} FROM tenants WHERE id = 'new'").one()
        assert tuple(row) == (None, None, None, None)
        sums = "SELECT * FROM kept ORDER BY tenant"
        assert [tuple(row) for row in connection.exec_driver_sql(sums).all()] == [
            ("default", 0, 2 + 2 + 512, 0),
            ("old", 2000 + 2 + 4096, 2 + 6 + 512, 2 + 1024 + 2 + 3 + 2 * 256),
        ]
        # What hangs on a batch goes with it, out of the sums too.
        connection.exec_driver_sql("DELETE FROM batches")
        one = "SELECT batches FROM kept WHERE tenant = 'old'"
        assert connection.exec_driver_sql(one).scalar_one() == 0
        assert connection.exec_driver_sql("SELECT sum(requests) FROM usage").scalar_one() == 1
    with engine.begin() as connection:
        steps.downgrade(connection, "0008")
        assert connection.exec_driver_sql("SELECT count(*) FROM responses").scalar_one() == 2
    engine.dispose()


def test_an_upgrade_that_fails_leaves_nothing_behind(engine: Engine) -> None:
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE responses (mine INTEGER)")
    with pytest.raises(Exception, match="already exists"), engine.begin() as connection:
        steps.upgrade(connection)
    assert names(engine) == {"responses"}
    engine.dispose()


def test_every_constraint_has_a_name() -> None:
    for table in metadata.tables.values():
        assert all(constraint.name for constraint in table.constraints), table.name
        assert all(index.name for index in table.indexes), table.name
