"""Pulls of this process, for tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from gatewayd.hub.errors import HubError
from gatewayd.hub.pull import pull
from gatewayd.hub.pull_events import PullEvent
from gatewayd.hub.reference import parse_reference

REPO = "org/small"


def pulled(name: str = REPO, *patterns: str) -> list[PullEvent]:
    events: list[PullEvent] = []
    pull(parse_reference(name), patterns, report=events.append)
    return events


def refused(name: str = REPO, *patterns: str) -> HubError:
    with pytest.raises(HubError) as caught:
        pulled(name, *patterns)
    return caught.value


def contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }
