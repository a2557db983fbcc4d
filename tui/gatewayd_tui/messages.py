"""What the feed tells the console."""

from __future__ import annotations

from textual.message import Message

from gatewayd.wire.snapshot import Snapshot


class SnapshotArrived(Message):
    """There is news.

    Args:
        snapshot: all of it.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        super().__init__()
        self.snapshot = snapshot


class ConnectionLost(Message):
    """There is no news until further notice.

    Args:
        why: a sentence.
    """

    def __init__(self, why: str) -> None:
        super().__init__()
        self.why = why
