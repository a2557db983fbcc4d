"""Banner: a curl command to paste, and the engine's progress."""

from __future__ import annotations

import asyncio
import io
import json
import shlex

import pytest
from rich.console import Console

from gatewayd.daemon.banner import ReadyMessage, show_loading
from gatewayd.engines.api import ReplicaState, ReplicaStatus


@pytest.mark.parametrize(("can_chat", "path"), [(True, "chat/completions"), (False, "completions")])
def test_the_curl_is_a_shell_command_with_a_json_body(can_chat: bool, path: str) -> None:
    ready_message = ReadyMessage("it's", "http://127.0.0.1:8000", can_chat=can_chat, needs_key=True)
    words = shlex.split(ready_message.curl())
    assert words[:2] == ["curl", f"http://127.0.0.1:8000/v1/{path}"]
    assert "authorization: Bearer $GATEWAYD_API_KEY" in words
    body = json.loads(words[words.index("-d") + 1])
    assert body["model"] == "it's"
    assert ("messages" in body) == can_chat


def test_the_welcome_names_model_and_url() -> None:
    out = io.StringIO()
    ready_message = ReadyMessage("nano", "http://127.0.0.1:81", can_chat=True, needs_key=False)
    ready_message.show(Console(file=out, width=100), 1.25)
    assert "nano" in out.getvalue()
    assert "http://127.0.0.1:81/v1" in out.getvalue()
    assert "1.2 s" in out.getvalue()


class _Fleet:
    """Loads in three looks."""

    def __init__(self) -> None:
        self.looks = 0

    @property
    def is_ready(self) -> bool:
        self.looks += 1
        return self.looks > 3

    def status(self) -> list[ReplicaStatus]:
        detail = f"loading weights {self.looks * 20}%"
        return [ReplicaStatus(0, ReplicaState.STARTING, 1, 0.0, 0, detail, None)]


async def test_progress_ends_when_the_fleet_is_ready() -> None:
    out = io.StringIO()
    console = Console(file=out, width=100, force_terminal=True)
    await asyncio.wait_for(show_loading([("nano", _Fleet())], console), 30)  # type: ignore[list-item]
    assert "nano: loading weights" in out.getvalue()
