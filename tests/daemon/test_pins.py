"""Prefix pins: set in a running daemon by admin socket and by command."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from gatewayd.admin.client import AdminError, call

Start = Callable[..., Any]
NANO = ("-m", "gatewayd", "serve", "--port", "0")
KEPT = list(range(300, 364))


@pytest.fixture
def nano(start_daemon: Start, tmp_path: Path) -> Any:
    """A daemon over the embedded model with a cache of 24 pages; its socket is ``path``."""
    path = tmp_path / "admin.sock"
    file = tmp_path / "g.toml"
    file.write_text(
        f'[admin]\nsocket = "{path}"\n[engine]\nthreads = 1\nkv_pages = 24\n'
        '[eviction]\nstrategy = "retention"\n'
    )
    daemon = start_daemon(NANO, env={"GATEWAYD_CONFIG": str(file), "GATEWAYD_ENGINE__THREADS": "1"})
    daemon.path = path
    daemon.file = file
    return daemon


def pins(daemon: Any, **body: Any) -> Any:
    return call(str(daemon.path), "PUT", "/admin/pins", body)


def ask(daemon: Any, **body: Any) -> int:
    """Send a request; how many tokens of its prompt were cached."""
    route = "chat/completions" if "messages" in body else "completions"
    answer = httpx.post(
        f"{daemon.url}/v1/{route}", json={"model": "nano", "max_tokens": 1, **body}, timeout=30
    )
    answer.raise_for_status()
    details = answer.json()["usage"].get("prompt_tokens_details") or {}
    return int(details.get("cached_tokens", 0))


def fill(daemon: Any) -> None:
    """Many prompts that come once."""
    for first in range(400, 410):
        ask(daemon, prompt=[first, *range(20, 110)])


def test_a_pinned_prompt_stays_and_an_unpinned_one_goes(nano: Any) -> None:
    assert ask(nano, prompt=KEPT) == 0
    assert pins(nano, prompt=KEPT, seconds=60) == {
        "prompt_tokens": 64,
        "pinned_tokens": {"0": 64},
    }
    assert nano.said("prefix cache: 64 of 64 tokens pinned for 60 s by uid")
    fill(nano)
    assert ask(nano, prompt=[*KEPT, 5]) == 64
    assert pins(nano, seconds=0)["pinned_tokens"] == {"0": 0}
    fill(nano)
    assert ask(nano, prompt=[*KEPT, 5]) == 0


def test_the_command_pins_the_system_message_of_chats(nano: Any) -> None:
    text = "You answer in one word, and you never explain anything to anybody. " * 3
    messages = [{"role": "system", "content": text}, {"role": "user", "content": "Why?"}]
    ask(nano, messages=messages)
    told = run(nano, text, "--system", "--for", "10m")
    tokens = int(told.split()[2])
    assert told == f"engine 0: {tokens} of {told.split()[4]} tokens are pinned\n"
    assert tokens >= 16
    fill(nano)
    messages[1]["content"] = "Where?"
    assert ask(nano, messages=messages) >= tokens
    assert run(nano, "--off") == "no longer pinned\n"


def run(daemon: Any, *words: str) -> str:
    """What ``gatewayd pin`` prints."""
    command = [sys.executable, "-m", "gatewayd", "pin", *words, "--socket", str(daemon.path)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


BAD: list[tuple[dict[str, Any], str]] = [
    ({"prompt": KEPT, "seconds": -1}, "seconds is -1; it must be from 0"),
    ({"prompt": KEPT, "seconds": 1e9}, "to 604800"),
    ({"prompt": KEPT}, "missing required field `seconds`"),
    ({"seconds": 60}, "send a prompt or messages to pin"),
    ({"prompt": "", "seconds": 60}, "prompt is empty"),
    ({"prompt": [1 << 20], "seconds": 60}, "prompt has the token id 1048576"),
    ({"prompt": [9] * 385, "seconds": 60}, "prompt has 385 tokens; the model's context is 384"),
    ({"prompt": "a", "messages": [], "seconds": 60}, "either prompt or messages"),
    ({"messages": [{"role": "king", "content": ""}], "seconds": 60}, r"\$.messages\[0\].role"),
]


def test_what_cannot_be_pinned_is_refused_by_name(nano: Any) -> None:
    for body, words in BAD:
        with pytest.raises(AdminError, match=words):
            pins(nano, **body)
    call(str(nano.path), "PUT", "/admin/strategies/eviction", {"name": "lru"})
    with pytest.raises(AdminError, match="eviction strategy in use does not support pins"):
        pins(nano, prompt=KEPT, seconds=60)
