"""Operator overrides: in force over restarts until the configuration file changes the setting."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gatewayd.admin.overrides import records
from gatewayd.admin.overrides.records import OverrideRecord
from gatewayd.admin.overrides.sections import value_of, with_value
from gatewayd.cli.store import app
from gatewayd.config.tables import Config
from gatewayd.daemon.resources import PersistentResources
from gatewayd.store.database import connect
from tests.gatewayd.admin.test_control import control_of
from tests.gatewayd.store_fixtures import opened

FILE = {"scheduler": {"strategy": "fcfs", "fcfs": {"max_prefill_chunk": 64}}}


def file_of(**tables: Any) -> Config:
    return Config(**{**FILE, **tables})


def changed(
    durable: PersistentResources, section: str, value: Any, file: Config, who: str = "me"
) -> None:
    """As a control does it."""
    durable.overrides.file = file
    durable.overrides.persist(
        section, with_value(durable.overrides.apply(file), section, value), who
    )


def in_effect(folder: Path, file: Config) -> Config:
    """What a daemon would serve with, started now."""
    with opened(folder) as durable:
        return durable.overrides.apply(file)


def test_without_changes_the_file_counts(tmp_path: Path) -> None:
    file = file_of()
    assert in_effect(tmp_path, file) is file


async def test_what_a_control_changes_is_there_after_a_restart(tmp_path: Path) -> None:
    file = file_of()
    with opened(tmp_path) as durable:
        durable.overrides.file = file
        control, _ = control_of(file, durable.overrides)
        await control.swap("scheduler", ["priority"], {"priority": {"batch": 2.0}}, "uid 7")
        control.set_limits({"max_waiting_requests": 77, "strategy_budget_ms": 3.5}, "uid 7")
        control.set_slo({"realtime": {"ttft_ms": 123.0}}, "uid 7")
        lived = control.config
    found = in_effect(tmp_path, file)
    for section in ("scheduler", "queue", "engine", "slo"):
        assert getattr(found, section) == getattr(lived, section), section
    assert found.scheduler.strategy == "priority"
    assert found.scheduler.settings("priority") == {"batch": 2.0}
    assert found.scheduler.settings("fcfs") == {"max_prefill_chunk": 64}
    assert (found.queue.max_waiting_requests, found.engine.strategy_budget_ms) == (77, 3.5)
    assert found.slo.realtime.ttft_ms == 123.0
    assert found.model == file.model


async def test_a_reload_keeps_it_until_the_file_says_something_else(tmp_path: Path) -> None:
    file = file_of()
    with opened(tmp_path) as durable:
        durable.overrides.file = file
        control, swaps = control_of(file, durable.overrides)
        await control.swap("scheduler", ["priority"], {}, "me")
        control.set_slo({"batch": {"e2e_ms": 9000.0}}, "me")
        await control.reload(file_of(), "SIGHUP")
        assert control.config.scheduler.strategy == "priority"
        assert control.config.slo.batch.e2e_ms == 9000.0
        await control.reload(file_of(scheduler={"strategy": "fair"}), "SIGHUP")
        assert control.config.scheduler.strategy == "fair"
        assert control.config.slo.batch.e2e_ms == 9000.0
        # Back to what it said: that is a change of the file, too, but not since the operator's.
        await control.reload(file_of(), "SIGHUP")
        assert control.config.scheduler.strategy == "priority"
    assert [names for _, names in swaps.made] == [["priority"], ["fair"], ["priority"]]


@pytest.mark.parametrize(
    ("section", "value"),
    [
        ("scheduler", {"strategy": "priority"}),
        ("engine.strategy_budget_ms", 9.0),
        ("slo", {"realtime": {"ttft_ms": 1.0}}),
    ],
)
def test_a_file_that_was_changed_there_counts(tmp_path: Path, section: str, value: Any) -> None:
    file = file_of()
    with opened(tmp_path) as durable:
        changed(durable, section, value, file)
    assert value_of(in_effect(tmp_path, file), section) != value_of(file, section)
    other = file_of(
        scheduler={"strategy": "fair"},
        engine={"strategy_budget_ms": 11.0},
        slo={"standard": {"ttft_ms": 77.0}},
    )
    assert value_of(in_effect(tmp_path, other), section) == value_of(other, section)
    elsewhere = file_of(log={"level": "debug"}, queue={"max_waiting_requests": 9})
    assert value_of(in_effect(tmp_path, elsewhere), section) != value_of(elsewhere, section)


def test_the_last_change_counts_and_one_back_to_the_file_is_none(tmp_path: Path) -> None:
    file = file_of()
    with opened(tmp_path) as durable:
        for budget in (3.0, 4.0):
            changed(durable, "engine.strategy_budget_ms", budget, file)
    assert in_effect(tmp_path, file).engine.strategy_budget_ms == 4.0
    with opened(tmp_path) as durable:
        changed(durable, "engine.strategy_budget_ms", file.engine.strategy_budget_ms, file)
    assert in_effect(tmp_path, file) is file


def test_a_setting_that_is_a_secret_is_not_kept(tmp_path: Path) -> None:
    file = file_of()
    table = {"strategies": ["watermark"], "watermark": {"secret": "correct-horse-battery-42"}}
    with opened(tmp_path) as durable:
        changed(durable, "logits_processor", table, file)
    assert in_effect(tmp_path, file) is file
    stored = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert b"correct-horse" not in stored


def test_what_this_program_cannot_use_is_left_out(tmp_path: Path) -> None:
    file = file_of()
    rows = [
        OverrideRecord(1, "me", "gone", {"a": 1}, {}),
        OverrideRecord(1, "me", "engine.gone", 3, 2),
        OverrideRecord(1, "me", "queue.max_waiting_requests", -5, file.queue.max_waiting_requests),
        OverrideRecord(1, "me", "scheduler", {"strategy": "Fair!"}, value_of(file, "scheduler")),
        OverrideRecord(2, "me", "engine.strategy_budget_ms", 6.0, file.engine.strategy_budget_ms),
    ]
    with opened(tmp_path) as durable:
        for row in rows:
            durable.database.submit(partial(records.add, change=row))
    found = in_effect(tmp_path, file)
    assert found.engine.strategy_budget_ms == 6.0
    assert found.model_copy(update={"engine": file.engine}) == file


def test_history_is_bounded_by_section(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "KEPT", 10)
    file = file_of()
    with opened(tmp_path) as durable:
        changed(durable, "slo", {"realtime": {"ttft_ms": 5.0}}, file)
        for budget in range(1, 25):
            changed(durable, "engine.strategy_budget_ms", float(budget), file)
    engine = connect(tmp_path / "gatewayd.db")
    with engine.connect() as connection:
        rows = records.history(connection)
    engine.dispose()
    assert [row.section for row in rows].count("slo") == 1
    assert [row.value for row in rows if row.section != "slo"] == [
        float(budget) for budget in range(15, 25)
    ]


def test_the_command_line_shows_and_forgets_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GATEWAYD_STORE__PATH", str(tmp_path / "store"))
    run, file = CliRunner().invoke, file_of()
    assert run(app, ["changes"]).exit_code == 1
    with opened(tmp_path / "store") as durable:
        changed(durable, "scheduler", {"strategy": "priority"}, file, "uid 12")
        changed(durable, "engine.strategy_budget_ms", 4.0, file)
        refused = run(app, ["changes", "--forget"])
        assert "in use by another process" in refused.output
    shown = run(app, ["changes"]).stdout.splitlines()
    assert "[scheduler] by uid 12: " in shown[0]
    assert '"strategy": "priority"' in shown[0]
    assert shown[1].endswith("[engine.strategy_budget_ms] by me: 4.0")
    forgotten = run(app, ["changes", "--forget", "--json"])
    assert [row["actor"] for row in json.loads(forgotten.stdout)][2:] == ["--forget", "--forget"]
    assert in_effect(tmp_path / "store", file) is file
    assert run(app, ["changes"]).stdout.splitlines()[-1].endswith(": reset to the file")
