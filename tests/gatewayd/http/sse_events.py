"""Server-sent events of a stream, parsed for tests."""

from __future__ import annotations

import json
from typing import Any

from tests.gatewayd.gateway import CHAT

MESSAGES: Any = CHAT["messages"]


def events(body: str) -> list[Any]:
    lines = [line for line in body.split("\n\n") if line]
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
