"""``gatewayd top``: without a screen, and the shared options."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from gatewayd.cli import app
from gatewayd.wire.snapshot import Snapshot
from gatewayd_tui.recording import line_of
from tests.tui import samples
from tests.tui.fake_daemon import FakeDaemon


def told(*words: object) -> Any:
    return CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "160"})


@pytest.fixture
def asked(daemon: FakeDaemon) -> FakeDaemon:
    answer = json.loads(line_of(samples.snapshot(3)))
    daemon.answers["GET", "/admin/snapshot"] = 200, answer
    return daemon


def test_a_snapshot_as_json_is_the_daemon_s(asked: FakeDaemon) -> None:
    found = told("top", "--once", "--json", "--socket", asked.path)
    assert found.exit_code == 0
    assert msgspec.json.decode(found.output, type=Snapshot) == samples.snapshot(3)


def test_the_tables_have_every_row_whole(asked: FakeDaemon) -> None:
    out = told("top", "--once", "--socket", asked.path).output
    for words in [
        "tiny  ready",
        "3 running  5 waiting  kv 30%",
        "ttft         82ms  210ms  483ms  40",
        "realtime  ttft  500ms",
    ]:
        assert words in out
    lines = out.splitlines()
    look = samples.snapshot()
    owners = {row.id: row.tenant for row in look.waiting} | {r.id: r.tenant for r in look.running}
    for request, tenant in owners.items():
        (line,) = [each for each in lines if each.startswith(request)]
        assert tenant in line
    assert sum("queued: the running batch was full" in line for line in lines) == 5


def test_what_is_beyond_a_snapshot_and_what_is_wrong_is_said(asked: FakeDaemon) -> None:
    ill = msgspec.structs.replace(samples.snapshot().daemon, troubles=["it [red]hurts"])
    answer = json.loads(line_of(samples.snapshot(daemon=ill, more_waiting=1234, running=[])))
    asked.answers["GET", "/admin/snapshot"] = 200, answer
    out = told("top", "--once", "--socket", asked.path).output
    assert "and 1234 more" in out
    assert "✖ it [red]hurts" in out
    assert "running id" not in out


def test_a_recording_is_played_to_its_end(tmp_path: Path) -> None:
    file = tmp_path / "some.jsonl"
    file.write_bytes(b"".join(line_of(samples.snapshot(n)) for n in range(3)))
    out = told("top", "--json", "--snapshot", file, "--interval", "0.1").output
    assert [json.loads(line)["number"] for line in out.splitlines()] == [0, 1, 2]
    shown = told("top", "--snapshot", file, "--interval", "0.1").output
    assert shown.count("tiny  ready") == 3
    assert shown.count("2 requests/s  60 tokens/s") == 2  # one snapshot is no rate


def test_the_stream_of_a_daemon_ends_with_a_sentence(asked: FakeDaemon) -> None:
    asked.raw = b'{"version": 9}'
    ended = told("top", "--json", "--socket", asked.path)
    assert ended.exit_code == 1
    assert "snapshot version 9" in ended.output


@pytest.mark.parametrize("command", ["tui", "top"])
@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--snapshot", "/no/where"], "/no/where cannot be read: No such file"),
        ([], "no daemon given: use --socket PATH"),
        (["--config", "/no/where"], "/no/where cannot be read"),
    ],
)
def test_what_cannot_be_shown_is_said_at_once(
    command: str, words: list[str], sentence: str
) -> None:
    ended = told(command, *words)
    assert (ended.exit_code, sentence in ended.output) == (1, True), ended.output


def test_nobody_at_the_socket_is_said(tmp_path: Path) -> None:
    ended = told("top", "--once", "--socket", tmp_path / "none.sock")
    assert ended.exit_code == 1
    assert "no daemon answers at" in ended.output


def test_options_that_cannot_be_are_refused_before_a_screen_opens(tmp_path: Path) -> None:
    file = tmp_path / "one.jsonl"
    file.write_bytes(line_of(samples.snapshot()))
    for words, sentence in [
        (["--theme", "nonsense"], "there is no theme nonsense: "),
        (["--record", "/no/where/x"], "/no/where/x cannot be written"),
        (["--serve", "--host", "0.0.0.0"], "needs --public-url"),
    ]:
        ended = told("tui", "--snapshot", file, *words)
        assert (ended.exit_code, sentence in ended.output) == (1, True), ended.output


def test_plugins_that_are_no_list_are_refused_before_a_screen_opens(tmp_path: Path) -> None:
    file, config = tmp_path / "one.jsonl", tmp_path / "gatewayd.toml"
    file.write_bytes(line_of(samples.snapshot()))
    config.write_text('[plugins]\nconsole = "crowd"\n')
    ended = told("tui", "--snapshot", file, "--config", config)
    assert ended.exit_code == 1
    assert "[plugins] console must be a list of names" in ended.output
