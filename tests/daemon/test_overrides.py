"""Operator overrides: survive a restart where they are still valid."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gatewayd.admin.client import call
from gatewayd.admin.overrides import records
from gatewayd.store.database import connect
from tests.daemon.conftest import StartDaemon

NANO = ("-m", "gatewayd", "serve", "--port", "0")


def names(slots: list[dict[str, Any]], kind: str) -> list[str]:
    (found,) = [slot["names"] for slot in slots if slot["kind"] == kind]
    return list(found)


def test_changes_outlive_the_daemon(start_daemon: StartDaemon, tmp_path: Path) -> None:
    file, socket, store = (str(tmp_path / name) for name in ("g.toml", "a.sock", "store"))
    text = f'[admin]\nsocket = "{socket}"\n[store]\npath = "{store}"\n'
    Path(file).write_text(text)

    def life() -> tuple[Any, Any]:
        daemon = start_daemon(NANO, env={"GATEWAYD_CONFIG": file, "GATEWAYD_ENGINE__THREADS": "1"})
        return daemon, call(socket, "GET", "/admin/strategies")

    daemon, _ = life()
    call(socket, "PUT", "/admin/strategies/scheduler", {"name": "priority", "settings": {}})
    call(socket, "PATCH", "/admin/limits", {"max_waiting_requests": 77})
    daemon.kill_engine()
    assert daemon.stop() == 0
    daemon, found = life()
    assert daemon.said("runtime change of [scheduler] by ")
    assert names(found["slots"], "scheduler") == ["priority"]
    assert found["limits"]["max_waiting_requests"] == 77
    used = {row["name"] for row in found["strategies"] if row["kind"] == "scheduler"}
    assert used <= {"priority"}
    daemon.stop()
    engine = connect(Path(store, "gatewayd.db"))
    with engine.begin() as connection:
        (last,) = [row for row in records.latest(connection) if row.section == "scheduler"]
        records.add(connection, last._replace(value={"strategy": "uninstalled"}))
    engine.dispose()
    daemon, found = life()
    assert daemon.said("runtime changes not applied, using the configuration file: ")
    assert names(found["slots"], "scheduler") == ["fcfs"]
