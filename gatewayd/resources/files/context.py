"""Context shared by the routes of files."""

from __future__ import annotations

from typing import NamedTuple

from gatewayd.resources.files.content_store import ContentStore
from gatewayd.store.clock import StoreClock
from gatewayd.store.database import Database
from gatewayd.store.disk_quota import DiskQuota


class FileContext(NamedTuple):
    """Dependencies and limits of the files API.

    Attributes:
        database: database of their rows.
        vault: store of their contents.
        room: storage quota for new ones.
        clock: clock for their times.
        limit: maximum bytes of a file.
        only_local_pages: whether to refuse uploads by web pages of other machines.
    """

    database: Database
    vault: ContentStore
    room: DiskQuota
    clock: StoreClock
    limit: int
    only_local_pages: bool
