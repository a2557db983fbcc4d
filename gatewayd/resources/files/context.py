"""What the routes of files share."""

from __future__ import annotations

from typing import NamedTuple

from gatewayd.resources.files.content_store import Vault
from gatewayd.store.clock import Clock
from gatewayd.store.database import Database
from gatewayd.store.disk_quota import Room


class Files(NamedTuple):
    """Files, and what may become one.

    Attributes:
        database: with their rows.
        vault: with their contents.
        room: for new ones.
        clock: for their times.
        limit: bytes of one.
        only_local_pages: whether to refuse uploads by web pages of other machines.
    """

    database: Database
    vault: Vault
    room: Room
    clock: Clock
    limit: int
    only_local_pages: bool
