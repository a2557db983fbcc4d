"""Messages from the snapshot source to the console."""

from __future__ import annotations

from textual.message import Message

from gatewayd.wire.snapshot import Snapshot


class SnapshotArrived(Message):
    """A snapshot has been received.

    Args:
        snapshot: the snapshot.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        super().__init__()
        self.snapshot = snapshot


class ConnectionLost(Message):
    """The connection is lost; snapshots stop until it is restored.

    Args:
        why: the reason, a sentence.
    """

    def __init__(self, why: str) -> None:
        super().__init__()
        self.why = why
