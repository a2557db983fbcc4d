"""How many files and connections may be open: as many as the configuration allows."""

from __future__ import annotations

import logging
import resource

_log = logging.getLogger(__name__)

_SPARE = 256
"""For the store, the engines' sockets, files that are read, and what plugins open."""


def needed(connections: int) -> int:
    """Descriptors for so many connections: ``needed(2048) == 2304``."""
    return connections + _SPARE


def make_room(connections: int) -> None:
    """Raise the soft limit as far as is needed; say it if that is not allowed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = needed(connections)
    if soft >= wanted or soft == resource.RLIM_INFINITY:
        return
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    if most < wanted:
        _log.warning(
            "open-file limit too low: %d files allowed, %d needed for [server] connections = "
            "%d; raise LimitNOFILE= of the unit or ulimit -Hn, or lower the setting",
            most,
            wanted,
            connections,
        )
