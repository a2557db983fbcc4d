"""What the routes of files share."""

from __future__ import annotations

from typing import NamedTuple

from gatewayd.resources.files.content_store import Vault
from gatewayd.store.clock import StoreClock
from gatewayd.store.database import Database
from gatewayd.store.disk_quota import DiskQuota


class FileContext(NamedTuple):
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
    room: DiskQuota
    clock: StoreClock
    limit: int
    only_local_pages: bool
