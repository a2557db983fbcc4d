"""sd_notify: messages over real datagram sockets."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gatewayd.daemon.systemd.notify import notify


@pytest.fixture
def systemd() -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.settimeout(30)
        yield listening


def test_a_line_reaches_the_socket_of_a_path(
    systemd: socket.socket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    systemd.bind(str(tmp_path / "notify"))
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    notify("READY=1\nSTATUS=serving nano")
    notify("STOPPING=1")
    assert systemd.recv(1000) == b"READY=1\nSTATUS=serving nano"
    assert systemd.recv(1000) == b"STOPPING=1"


def test_a_line_reaches_an_abstract_socket(
    systemd: socket.socket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    systemd.bind(f"\0{tmp_path}")
    monkeypatch.setenv("NOTIFY_SOCKET", f"@{tmp_path}")
    notify("READY=1")
    assert systemd.recv(1000) == b"READY=1"


@pytest.mark.parametrize("name", ["nobody-bound-it", "closed", "x" * 200, "folder"])
def test_a_dead_socket_is_logged_once_and_stops_nothing(
    name: str,
    systemd: socket.socket,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    (tmp_path / "folder").mkdir()
    systemd.bind(str(tmp_path / "closed"))
    systemd.close()
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / name))
    for state in ("READY=1", "STATUS=x", "STOPPING=1"):
        notify(state)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert str(tmp_path / name) in record.getMessage()


def test_a_socket_that_nobody_reads_does_not_hold_the_daemon(
    systemd: socket.socket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    systemd.bind(str(tmp_path / "notify"))
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    began = time.monotonic()
    for _ in range(300):
        notify("STATUS=" + "x" * 1000)
    assert time.monotonic() - began < 20


def test_without_a_socket_nothing_is_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for value in (None, ""):
        if value is None:
            monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
        else:
            monkeypatch.setenv("NOTIFY_SOCKET", value)
        notify("READY=1")
    assert caplog.records == []
