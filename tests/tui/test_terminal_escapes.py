"""Terminal escapes in untrusted texts: neutralized on every screen."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatewayd_tui.cleaning import strip_controls
from gatewayd_tui.client import decode
from gatewayd_tui.recording import line_of
from gatewayd_tui.screens import SCREENS
from tests.tui.conftest import Watching, text_of
from tests.tui.fake_daemon import FakeDaemon
from tests.tui.samples import snapshot
from tests.tui.test_top import told

EVIL = "\x1b]0;t\x07\x1b[2J\x9b2J\r\n\x7f\b\u202e\u2066[red]x"
CONTROLS = {chr(code) for code in (*range(32), *range(0x7F, 0xA0), 0x200E, 0x200F)}
CONTROLS |= {chr(code) for code in (*range(0x202A, 0x202F), *range(0x2066, 0x206A))}


def spoiled(value: Any, name: str = "") -> Any:
    """Every text in a snapshot, and a stranger's behind it."""
    if isinstance(value, dict):
        return {key: spoiled(one, key) for key, one in value.items()}
    if isinstance(value, list):
        return [spoiled(one, name) for one in value]
    return value + EVIL if isinstance(value, str) and name not in ("cells", "owners") else value


def texts(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [text for pair in value.items() for one in pair for text in texts(one)]
    if isinstance(value, list):
        return [text for one in value for text in texts(one)]
    return [value] if isinstance(value, str) else []


WORD = st.text([*sorted(CONTROLS), "\\", '"', "n", "u", "0", "é"], max_size=8)
ANY = st.lists(WORD | st.dictionaries(WORD, WORD, max_size=2), max_size=3)


@given(ANY, st.booleans(), st.booleans())
def test_only_what_drives_a_terminal_is_replaced(value: Any, is_ascii: bool, lines: bool) -> None:
    """Character by character, whichever way it is written down."""
    content = json.dumps(value, ensure_ascii=is_ascii).encode("utf-8", "surrogatepass")
    kept = {"\n", "\t"} if lines else set()
    wanted = ["".join(" " if c in CONTROLS - kept else c for c in text) for text in texts(value)]
    found = json.loads(strip_controls(content, keeps_lines=lines).decode("utf-8", "surrogatepass"))
    if len(texts(found)) == len(wanted):  # two keys may have become one
        assert texts(found) == wanted


def test_owners_of_many_tenants_stay_who_they_are() -> None:
    given = json.loads(line_of(snapshot()))
    given["kv"][0]["owners"] = owners = "".join(chr(48 + number) for number in range(1000))
    for line in (json.dumps(given), msgspec.json.encode(given)):
        assert decode(line).kv[0].owners == owners


@pytest.mark.parametrize("screen", [screen.NAME for screen in SCREENS])
async def test_no_screen_writes_what_a_terminal_obeys(
    daemon: FakeDaemon, watching: Watching, screen: str
) -> None:
    daemon.raw = json.dumps(spoiled(json.loads(line_of(snapshot())))).encode()
    async with watching((120, 40), start=screen) as (console, _):
        shown = text_of(console)
    assert not CONTROLS - {"\n"} & set(shown)


def test_tables_write_nothing_of_it_either(tmp_path: Path) -> None:
    file = tmp_path / "some.jsonl"
    file.write_text(json.dumps(spoiled(json.loads(line_of(snapshot())))) + "\n")
    out = told("top", "--snapshot", file, "--interval", "0.1").output
    assert "[red]x" in out
    assert not CONTROLS - {"\n"} & set(out)
