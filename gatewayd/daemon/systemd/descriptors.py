"""Limit on open files, raised to what the configured connections need."""

from __future__ import annotations

import logging
import resource

_log = logging.getLogger(__name__)

_SPARE = 256
"""Reserve for the store, the engines' sockets, other files, and plugins."""


def descriptors_for(connections: int) -> int:
    """File descriptors for a number of connections: ``descriptors_for(2048) == 2304``."""
    return connections + _SPARE


def raise_file_limit(connections: int) -> None:
    """Raise the soft limit as far as needed; log a warning if the hard limit is too low."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = descriptors_for(connections)
    # Python's RLIM_INFINITY is -1, so a comparison alone does not cover it.
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
