"""``gatewayd tenant``, ``key``, ``price``, ``usage`` and ``audit``: on a store without a daemon."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from gatewayd.cli.tenants import key, price, tenant
from gatewayd.cli.tenants.tenant import micros_of, money
from gatewayd.cli.tenants.usage import audit, usage
from tests.gatewayd.store_fixtures import copy_of, opened

Run = Callable[..., str]

both = typer.Typer()
both.command()(usage)
both.command()(audit)
APPS = {"tenant": tenant.app, "key": key.app, "price": price.app, "": both}


@pytest.fixture
def folder(fresh_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GATEWAYD_STORE__PATH", str(tmp_path / "store"))
    return copy_of(fresh_store, tmp_path / "store")


def run(*words: str, status: int = 0) -> str:
    group = words[0] if words[0] in APPS else ""
    answer = CliRunner().invoke(APPS[group], list(words if group == "" else words[1:]))
    assert answer.exit_code == status, answer.output
    text: str = answer.output
    return text


def read(*words: str) -> Any:
    return json.loads(run(*words, "--json"))


def test_an_operator_makes_changes_and_removes(folder: Path) -> None:
    run("price", "set", "*", "--input", "0.50", "--cached", "0.05", "--output", "1.5")
    assert read("price", "list") == [
        {"model": "*", "input": 500_000, "cached": 50_000, "output": 1_500_000}
    ]
    terms = ["--tokens-per-minute", "1000", "--concurrency", "4", "--budget-money", "250.25"]
    terms += ["--kv-floor", "12.5%", "--kv-ceiling", "300"]
    run("tenant", "create", "acme", *terms)
    run(
        "tenant",
        "set",
        "acme",
        "--concurrency",
        "none",
        "--weight",
        "2",
        "--budget-period",
        "month",
    )
    shown = {row["tenant"]: row for row in read("tenant", "list")}
    assert shown.keys() == {"acme", "default"}
    assert (shown["acme"]["concurrency"], shown["acme"]["weight"]) == (None, 2.0)
    assert (shown["acme"]["tokens_per_minute"], shown["acme"]["most_micros"]) == (1000, 250_250_000)
    assert shown["acme"]["budget_period"] == "month"
    assert (shown["acme"]["kv_floor"], shown["acme"]["kv_ceiling"]) == ("12.5%", "300")
    made = read("key", "create", "acme", "--name", "web", "--for", "90d", "--scope", "infer:nano")
    assert made["secret"].startswith(f"gw_{made['key']}_")
    assert made["expires_at"] - made["created_at"] == 90 * 86_400
    (listed,) = read("key", "list")
    assert (listed["name"], listed["scopes"]) == ("web", ["infer:nano"])
    assert "secret" not in listed
    assert not any("digest" in name for name in listed)
    rotated = run("key", "rotate", made["key"], "--overlap", "2d").split()[0]
    assert rotated != made["secret"]
    with opened(folder) as durable:
        for secret in (made["secret"], rotated):
            principal = durable.tenancy.directory.authenticate(secret.encode())
            assert principal.tenant == "acme"
    run("key", "revoke", made["key"])
    run("tenant", "remove", "acme")
    assert read("usage") == []
    found = read("audit")
    assert (len(found["rows"]), found["fault"]) == (7, None)
    for text in (run("tenant", "list"), run("key", "list"), run("price", "list"), run("audit")):
        assert rotated not in text
        assert "Traceback" not in text


def test_rights_and_shares_are_given_and_taken_away(folder: Path) -> None:
    rights = ["--service-class", "realtime", "--retention-priority", "80"]
    rights += ["--retention-seconds", "3600", "--store-bytes", "1.5GiB"]
    run("tenant", "create", "acme", *rights)
    run("tenant", "create", "plain")
    shown = {row["tenant"]: row for row in read("tenant", "list")}
    names = ("service_class", "retention_priority", "retention_seconds", "store_bytes")
    assert [shown["acme"][name] for name in names] == ["realtime", 80, 3600, 3 << 29]
    assert [shown["plain"][name] for name in names] == [None] * 4
    # The operator's own is not bounded.
    assert [shown["default"][name] for name in names] == ["realtime", 100, 86_400, None]
    (line,) = [one for one in run("tenant", "list").splitlines() if one.startswith("acme")]
    assert line.split()[-7:] == ["realtime", "80", "for", "3600", "s", "0B", "1.5GiB"]
    away = [word for option in rights[::2] for word in (option, "none")]
    run("tenant", "set", "acme", *away)
    shown = {row["tenant"]: row for row in read("tenant", "list")}
    assert [shown["acme"][name] for name in names] == [None] * 4
    detail = [row["detail"] for row in read("audit")["rows"] if row["action"] == "tenant.set"]
    assert "service_class" in str(detail)


def test_usage_is_added_up(folder: Path) -> None:
    with opened(folder) as durable:
        del durable
    assert run("usage", "--by", "model").split()[:2] == ["tenant", "model"]
    assert "by is 'nothing'" in run("usage", "--by", "nothing", status=1)


@pytest.mark.parametrize(
    ("words", "status", "why"),
    [
        (["tenant", "create", "No Good"], 1, "is invalid"),
        (["tenant", "set", "unknown", "--weight", "1"], 1, "there is no tenant 'unknown'"),
        (["tenant", "set", "default"], 2, "nothing to change"),
        (["tenant", "set", "default", "--concurrency", "-1"], 2, "neither a whole number"),
        (["tenant", "set", "default", "--concurrency", "0"], 1, ">= 1"),
        (["tenant", "set", "default", "--budget-period", "week"], 2, "none of day, month"),
        (["tenant", "set", "default", "--kv-floor", "101%"], 2, "neither a number of pages"),
        (
            ["tenant", "set", "default", "--service-class", "urgent"],
            2,
            "none of realtime, standard",
        ),
        (["tenant", "set", "default", "--retention-priority", "101"], 1, "<= 100"),
        (["tenant", "set", "default", "--retention-seconds", "0"], 1, ">= 1"),
        (["tenant", "set", "default", "--store-bytes", "much"], 2, "such as 10GiB"),
        (["tenant", "set", "default", "--store-bytes", "-1"], 2, "such as 10GiB"),
        (["tenant", "set", "default", "--budget-money", "1,5"], 2, "no amount such as 12.50"),
        (["tenant", "create", "default"], 1, "there is a tenant default"),
        (["key", "create", "unknown"], 1, "there is no tenant 'unknown'"),
        (["key", "create", "default", "--scope", "all"], 1, "there is no scope 'all'"),
        (["key", "create", "default", "--for", "soon"], 2, "is not a time"),
        (["key", "rotate", "0123456789ab", "--overlap", "8d"], 1, "<= 604800"),
        (["key", "revoke", "0123456789ab"], 1, "there is no key"),
        (["price", "set", "m", "--input", "1", "--output", "0.0000001"], 2, "6 decimals"),
        (["price", "remove", "m"], 1, "has no price"),
    ],
)
def test_what_cannot_be_is_one_sentence(
    folder: Path, words: list[str], status: int, why: str
) -> None:
    assert why in run(*words, status=status)
    assert read("audit")["rows"] == []


def test_a_running_daemon_without_a_socket_keeps_its_store(folder: Path) -> None:
    with opened(folder):
        told = run("tenant", "create", "acme", status=1)
    assert "in use by another process" in told
    assert "[admin] socket" in told


@pytest.mark.parametrize(
    ("micros", "text"),
    [(0, "0.00"), (1, "0.000001"), (1_500_000, "1.50"), (10**15, "1000000000.00")],
)
def test_amounts_are_exact(micros: int, text: str) -> None:
    assert money(micros) == text
    assert micros_of(text, "--input") == micros


def test_what_somebody_has_changed_is_told_and_accepted(folder: Path) -> None:
    run("tenant", "create", "acme", "--budget-tokens", "5")
    head = read("audit")["head"]
    assert head in run("audit")
    run("audit", "--head", head)
    assert "the audit has no row 1:00" in run("audit", "--head", "1:00", status=1)
    assert "must be NUMBER:SEAL" in run("audit", "--head", "one", status=1)
    with sqlite3.connect(folder / "gatewayd.db") as connection:
        connection.execute("UPDATE budgets SET most_tokens = 50 WHERE tenant = 'acme'")
    connection.close()
    assert "gatewayd: budgets acme was changed" in run("audit", status=1)
    assert run("audit", "--accept") == "accepted: budgets acme was changed\n"
    assert run("audit", "--accept") == "nothing is wrong\n"
    assert "audit.accept" in run("audit")
