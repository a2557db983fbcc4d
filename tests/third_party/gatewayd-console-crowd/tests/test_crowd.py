"""Tenants are added up as by hand, and only the largest crowd is thinned out."""

from typing import Any

from gatewayd_hooks.console import Rows
from gatewayd_hooks.testing.console import FakeDaemon
from gatewayd_hooks.testing.looks import busy_look, idle_look

from gatewayd_console_crowd import gatewayd_console_actions, gatewayd_console_panels


def look(*waiting: tuple[str, str, float]) -> dict[str, Any]:
    """A daemon at which requests wait: id, tenant, milliseconds."""
    (row, *_) = busy_look()["waiting"]
    rows = [row | {"id": i, "tenant": t, "age_ms": ms, "prompt_tokens": 7} for i, t, ms in waiting]
    return idle_look() | {"waiting": rows}


CROWD = look(("a", "acme", 100.0), ("b", "bee", 900.0), ("c", "acme", 300.0), ("d", "", 5.0))


def shown(of: dict[str, Any]) -> list[list[object]]:
    (panel,) = gatewayd_console_panels()
    rows = panel.show(of)
    assert isinstance(rows, Rows)
    return [list(row) for row in rows.rows]


def test_who_has_waited_longest_in_sum_is_first() -> None:
    assert shown(CROWD) == [
        ["bee", 1, 7, "0.9"],
        ["acme", 2, 14, "0.4"],
        ["(nobody)", 1, 7, "0.0"],
    ]
    assert shown(idle_look()) == []


def test_the_one_with_most_requests_is_thinned_out_the_oldest_first() -> None:
    (action,) = gatewayd_console_actions()
    daemon = FakeDaemon(CROWD)
    assert action.run(daemon) == "2 waiting requests of acme are cancelled"
    assert daemon.calls[1:] == [
        ("POST", "/admin/requests/c/cancel"),
        ("POST", "/admin/requests/a/cancel"),
    ]
    assert action.run(FakeDaemon(idle_look())) == "nobody waits"


def test_what_could_not_be_cancelled_is_told() -> None:
    (action,) = gatewayd_console_actions()
    said = action.run(FakeDaemon(CROWD, "it has ended"))
    assert said == "0 waiting requests of acme are cancelled; 2 are not: it has ended"
