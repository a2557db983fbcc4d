"""Machine and tenant screens: text snapshots in small and large terminals."""

from __future__ import annotations

import time
from collections.abc import Iterator

import msgspec
import pytest
from syrupy.assertion import SnapshotAssertion

from tests.tui.conftest import Watching, settled
from tests.tui.fake_daemon import FakeDaemon
from tests.tui.test_plugins import INSTALLED
from tests.tui.test_prefixes import forest
from tests.tui.test_tenants import key

NOW = 1_790_000_000.0


@pytest.fixture(autouse=True)
def filled(daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A daemon that has something for each of them, at an hour that is always the same."""
    monkeypatch.setattr(time, "time", lambda: NOW)
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    forest(daemon)
    rows = [key(0, expires_at=int(NOW) + 86_400), key(1, revoked_at=1), key(2, "globex")]
    daemon.answers["GET", "/admin/keys"] = 200, rows
    used = [{"tenant": "acme", "key_id": rows[0]["key"], "last_at": int(NOW) - 7200}]
    daemon.prefixed["GET", "/admin/usage?by=key&since="] = 200, used
    daemon.answers["GET", "/admin/plugins"] = 200, {"plugins": msgspec.to_builtins(INSTALLED)}
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize("size", [(80, 24), (120, 40)], ids=str)
@pytest.mark.parametrize(
    ("screen", "last"),
    [
        ("kv", "globex"),
        ("prefixes", "assistant 2"),
        ("slo", "standard  all"),
        ("tenants", "gw_0123456789a1"),
        ("models", "float32"),
        ("plugins", "executor"),
    ],
)
async def test_a_screen_at_a_glance(
    watching: Watching, snapshot: SnapshotAssertion, screen: str, last: str, size: tuple[int, int]
) -> None:
    async with watching(size, start=screen) as (console, pilot):
        assert await settled(pilot, console, last) == snapshot
