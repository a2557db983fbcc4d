"""Operator commands: requests sent to a running daemon, and refusals."""

from __future__ import annotations

from typing import Any

import pytest
from typer.testing import CliRunner

from gatewayd.cli import app

SENT: list[tuple[str, str, Any]] = []


@pytest.fixture(autouse=True)
def daemon(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that agrees to everything."""
    SENT.clear()

    def call(path: str, method: str, route: str, body: object = None, wait: float = 0.0) -> Any:
        SENT.append((method, route, body))
        return {
            "request": "r",
            "state": "ready",
            "pages": 3,
            "in_use": 1,
            "replicas": {"0": "starting: weights 10%"},
        }

    monkeypatch.setattr("gatewayd.cli.operate.swap.call", call)


def run(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, [*words, "--socket", "s"])
    return done.exit_code, done.output


@pytest.mark.parametrize(
    ("words", "sent", "said"),
    [
        (
            "request cancel a/b",
            ("POST", "/admin/requests/a%2Fb/cancel", None),
            "request r is cancelled",
        ),
        ("request hold r", ("POST", "/admin/requests/r/hold", None), "request r is held"),
        ("request release r", ("POST", "/admin/requests/r/release", None), "request r is released"),
        ("request bump r", ("POST", "/admin/requests/r/bump", None), "first in its class"),
        (
            "request bump r --priority batch",
            ("POST", "/admin/requests/r/bump", {"priority": "batch"}),
            "of class batch",
        ),
        ("pause", ("POST", "/admin/pause", {"seconds": None}), "until resumed"),
        ("pause --for 2m", ("POST", "/admin/pause", {"seconds": 120.0}), "for 2m"),
        ("resume", ("POST", "/admin/resume", None), "the daemon is ready"),
        ("drain", ("POST", "/admin/drain", None), "finishes its requests"),
        (
            "model unload nano --seconds 3",
            ("POST", "/admin/models/nano/unload", {"seconds": 3.0}),
            "nano is unloaded",
        ),
        ("model load nano", ("POST", "/admin/models/nano/load", None), "engine 0: starting"),
        ("prefix evict 0/17", ("DELETE", "/admin/prefixes/0/17", None), "3 pages are free; 1 are"),
        (
            "prefix evict --tenant a&b",
            ("DELETE", "/admin/prefixes?tenant=a%26b", None),
            "3 pages are free",
        ),
        ("prefix evict --all", ("DELETE", "/admin/prefixes", None), "3 pages are free"),
        (
            "prefix evict --tenant t --model a&b/c",
            ("DELETE", "/admin/prefixes?tenant=t&model=a%26b%2Fc", None),
            "3 pages are free",
        ),
        (
            "pause --model chat",
            ("POST", "/admin/pause?model=chat", {"seconds": None}),
            "until resumed",
        ),
        ("resume --model chat", ("POST", "/admin/resume?model=chat", None), "chat is ready"),
        ("pin --off --model chat", ("PUT", "/admin/pins?model=chat", {"seconds": 0}), "no longer"),
        (
            "strategies --json --model chat",
            ("GET", "/admin/strategies?model=chat", None),
            '"state": "ready"',
        ),
    ],
)
def test_each_command_is_one_call(words: str, sent: Any, said: str) -> None:
    status, output = run(*words.split())
    assert status == 0, output
    assert said in output
    assert [sent] == SENT


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("pause --for soon", "--for soon is not a time"),
        ("pause --for 8d", "--for 8d is too long"),
        ("prefix evict", "give one of"),
        ("prefix evict 0/1 --all", "give one of"),
        ("prefix evict 17", "17 is not ENGINE/PAGE"),
        ("model unload nano --seconds -1", "--seconds"),
    ],
)
def test_what_cannot_be_meant_is_not_sent(words: str, said: str) -> None:
    status, output = run(*words.split())
    assert status == 2
    assert said in output
    assert not SENT
