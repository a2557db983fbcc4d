"""Tenants screen: input is requested, and a secret is shown once and kept nowhere."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from textual.widgets import Input, Static

from gatewayd_tui.app import Console
from gatewayd_tui.client import DaemonSource
from gatewayd_tui.queries import Key
from gatewayd_tui.recording import Recorder
from gatewayd_tui.screens.tenants import state_of, usage_cell
from gatewayd_tui.widgets.form import FormDialog
from gatewayd_tui.widgets.secret import Secret
from tests.tui.conftest import Watching, said, text_of, until
from tests.tui.fake_daemon import FakeDaemon

SECRET = "gw_0123456789ab_it-is-never-to-be-seen-again"
TERMS = {"tenant": "acme", "weight": 1.0, "concurrency": 8, "most_micros": 12_500_000}


def key(number: int, tenant: str = "acme", **changed: Any) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "key": f"0123456789a{number}",
        "tenant": tenant,
        "name": f"key {number}",
        "scopes": ["infer", "files"],
        "created_at": 1,
        "expires_at": None,
        "revoked_at": None,
        "old_until": None,
    }
    return fields | changed


@pytest.fixture
def desk(daemon: FakeDaemon) -> FakeDaemon:
    """A daemon with two keys of acme's and one of globex'."""
    now = int(time.time())
    keys = [key(0), key(1, revoked_at=now - 60), key(2, "globex", expires_at=now + 86_400)]
    daemon.answers["GET", "/admin/keys"] = (200, keys)
    used = [{"tenant": "acme", "key_id": keys[0]["key"], "requests": 1, "last_at": now - 7800}]
    daemon.prefixed["GET", "/admin/usage?by=key&since="] = (200, used)
    daemon.answers["GET", "/admin/tenants"] = (200, [TERMS])
    daemon.answers["POST", "/admin/keys"] = (200, {"key": "0123456789ab", "secret": SECRET})
    rotated = (200, {"key": keys[0]["key"], "secret": SECRET})
    daemon.answers["POST", f"/admin/keys/{keys[0]['key']}/rotate"] = rotated
    return daemon


def changes(daemon: FakeDaemon) -> list[tuple[str, str, Any]]:
    return [call for call in daemon.calls if call[0] != "GET"]


async def typed(pilot: Any, console: Console, **lines: str) -> None:
    """Fill a form in and send it."""
    await until(pilot, lambda: isinstance(console.screen, FormDialog))
    for name, text in lines.items():
        console.screen.query_one(f"#form-{name}", Input).value = text
    await pilot.press("enter")


async def test_the_keys_are_those_of_the_tenant_under_the_cursor(
    desk: FakeDaemon, watching: Watching
) -> None:
    async with watching(start="tenants") as (console, pilot):
        await until(pilot, lambda: "gw_0123456789a0" in text_of(console))
        shown = text_of(console)
        assert "● valid" in shown
        assert "✖ revoked" in shown
        assert "2h10m ago" in shown
        assert "gw_0123456789a2" not in shown
        await pilot.press("down")
        await until(pilot, lambda: "gw_0123456789a2" in text_of(console))
        assert "gw_0123456789a0" not in text_of(console)
        assert "keys of globex" in text_of(console)


async def test_a_tenant_is_added_with_its_limits(desk: FakeDaemon, watching: Watching) -> None:
    async with watching(start="tenants") as (console, pilot):
        await pilot.press("n")
        await typed(pilot, console, tenant="initech", concurrency="4", most_micros="9.99")
        await until(pilot, lambda: changes(desk))
    terms = {"concurrency": 4, "most_micros": 9_990_000}
    assert changes(desk) == [("POST", "/admin/tenants", {"tenant": "initech", "terms": terms})]


async def test_limits_are_changed_from_what_they_are(desk: FakeDaemon, watching: Watching) -> None:
    async with watching(start="tenants") as (console, pilot):
        await pilot.press("m")
        await until(pilot, lambda: isinstance(console.screen, FormDialog))
        lines = {each.id: each.value for each in console.screen.query(Input)}
        assert lines["form-concurrency"] == "8"
        assert lines["form-most_micros"] == "12.50"
        assert lines["form-most_tokens"] == ""
        await typed(pilot, console, concurrency="none", tokens_per_minute="5000")
        await until(pilot, lambda: changes(desk))
    body = {"concurrency": None, "tokens_per_minute": 5000}
    assert changes(desk) == [("PATCH", "/admin/tenants/acme", body)]


async def test_rights_and_a_share_of_the_store_are_granted(
    desk: FakeDaemon, watching: Watching
) -> None:
    async with watching(start="tenants") as (console, pilot):
        await until(pilot, lambda: "7.0 GiB^" in text_of(console))
        await pilot.press("m")
        rights = {"service_class": "batch", "retention_priority": "80", "retention_seconds": "12h"}
        await typed(pilot, console, **rights, store_bytes="1000000")
        await until(pilot, lambda: changes(desk))
    body = {
        "service_class": "batch",
        "retention_priority": 80,
        "retention_seconds": 43_200,
        "store_bytes": 1_000_000,
    }
    assert changes(desk) == [("PATCH", "/admin/tenants/acme", body)]


REFUSED = (
    ("m", "service_class", "urgent", "it must be one of batch, realtime, standard"),
    ("m", "retention_priority", "101", "it must be a whole number from 0 to 100"),
    ("n", "tenant", "", "tenant is missing; it must be text of at most 128 characters"),
    ("m", "weight", "1000", "weight is '1000'; it must be a number from 0.01 to 100"),
    ("m", "most_micros", "much", "it must be an amount such as 12.50"),
    ("m", "kv_floor", "101%", "it must be pages such as 128, or a share of all such as 12.5%"),
    ("a", "seconds", "a year", "it must be seconds from 0 to 3,162,240,000, or a time"),
)


async def test_what_cannot_be_is_refused_with_a_sentence(
    desk: FakeDaemon, watching: Watching
) -> None:
    async with watching(start="tenants") as (console, pilot):
        for pressed, name, text, sentence in REFUSED:
            await pilot.press(pressed)
            await typed(pilot, console, **{name: text})
            await pilot.pause()
            assert sentence in str(console.screen.query_one("#form-wrong", Static).content)
            assert console.screen.query_one(f"#form-{name}").has_focus
            await pilot.press("escape")
    assert changes(desk) == []


async def test_a_secret_is_shown_once_and_left_nowhere(
    desk: FakeDaemon, watching: Watching, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "recording"
    async with watching(start="tenants", recorder=Recorder(file)) as (console, pilot):
        await pilot.press("a")
        await typed(pilot, console, name="ci", seconds="30d", scopes="infer:tiny, files")
        await until(pilot, lambda: isinstance(console.screen, Secret))
        assert SECRET in text_of(console)
        await pilot.press("y")
        assert console.clipboard == SECRET
        dialog = console.screen
        await pilot.press("escape")
        await until(pilot, lambda: not isinstance(console.screen, Secret))
        assert SECRET not in text_of(console)
        assert console.clipboard == ""
        assert SECRET not in str(vars(dialog))
        assert not any(SECRET in each for each in said(console))
    body = {"tenant": "acme", "name": "ci", "scopes": ["infer:tiny", "files"], "seconds": 2_592_000}
    assert changes(desk) == [("POST", "/admin/keys", body)]
    assert SECRET not in file.read_text() + caplog.text


async def test_a_key_gets_another_secret_after_a_question(
    desk: FakeDaemon, watching: Watching
) -> None:
    async with watching(start="tenants") as (console, pilot):
        await until(pilot, lambda: "gw_0123456789a0" in text_of(console))
        await pilot.press("o")
        await typed(pilot, console, overlap_seconds="1h")
        await until(pilot, lambda: "rotate the secret" in text_of(console))
        assert changes(desk) == []
        await pilot.press("y")
        await until(pilot, lambda: isinstance(console.screen, Secret))
        assert SECRET in text_of(console)
    route = "/admin/keys/0123456789a0/rotate"
    assert changes(desk) == [("POST", route, {"overlap_seconds": 3600})]


async def test_a_key_is_revoked_after_a_question(desk: FakeDaemon, watching: Watching) -> None:
    async with watching(start="tenants") as (console, pilot):
        await until(pilot, lambda: "gw_0123456789a0" in text_of(console))
        await pilot.press("x")
        await pilot.pause()
        assert "revoke key 0123456789a0 of acme" in text_of(console)
        await pilot.press("y")
        await until(pilot, lambda: changes(desk))
    assert changes(desk) == [("DELETE", "/admin/keys/0123456789a0", None)]


async def test_a_refusal_is_shown_as_the_daemon_says_it(
    desk: FakeDaemon, watching: Watching
) -> None:
    desk.answers["POST", "/admin/tenants"] = (400, {"error": {"message": "acme is there already"}})
    async with watching(start="tenants") as (console, pilot):
        await pilot.press("n")
        await typed(pilot, console, tenant="acme")
        await until(pilot, lambda: said(console))
        assert said(console) == ["add tenant acme: acme is there already"]


async def test_read_only_asks_nothing(desk: FakeDaemon, watching: Watching) -> None:
    async with watching(start="tenants", read_only=True) as (console, pilot):
        for pressed in "nmaox":
            await pilot.press(pressed)
            await pilot.pause()
            assert not isinstance(console.screen, FormDialog)
    assert changes(desk) == []


async def test_where_keys_cannot_be_read_it_says_why(
    daemon: FakeDaemon, watching: Watching
) -> None:
    daemon.answers["GET", "/admin/keys"] = (400, {"error": {"message": "there is no store"}})
    async with watching(start="tenants") as (console, pilot):
        await until(pilot, lambda: "there is no store" in text_of(console))
        assert isinstance(console.source, DaemonSource)


@pytest.mark.parametrize(
    ("used", "most", "shown"),
    [
        (3, None, "3/-"),
        (79, 100, "79/100"),
        (80, 100, ("80/100^", "yellow")),
        (100, 100, ("100/100!", "bold red")),
    ],
)
def test_what_is_near_its_limit_is_marked_without_color_too(
    used: float, most: float | None, shown: object
) -> None:
    assert usage_cell(used, most) == shown


@pytest.mark.parametrize(
    ("times", "word"),
    [
        ({}, "● valid"),
        ({"revoked_at": 5, "expires_at": 200}, "✖ revoked"),
        ({"expires_at": 100}, "◌ expired"),
        ({"expires_at": 101, "old_until": 101}, "◐ rotating"),
        ({"old_until": 100}, "● valid"),
    ],
)
def test_the_state_of_a_key_is_that_of_now(times: dict[str, int], word: str) -> None:
    row = Key(key="k", tenant="t", name="", scopes=[], created_at=1, **times)
    assert state_of(row, 100)[0] == word
