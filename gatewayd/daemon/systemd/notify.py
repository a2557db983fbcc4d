"""Notification protocol of systemd (``Type=notify``)."""

from __future__ import annotations

import functools
import logging
import os
import socket

_log = logging.getLogger(__name__)


def notify(state: str) -> None:
    """Send lines such as ``READY=1`` or ``STATUS=...``; no effect without ``NOTIFY_SOCKET``.

    An unreachable socket, or a full one, is logged: the lines have no receiver then, and must not
    block the daemon.
    """
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            # A leading "@" stands for one of Linux's abstract names.
            sender.connect("\0" + address[1:] if address.startswith("@") else address)
            sender.send(state.encode())
    except OSError as error:
        _warn_once(address, error.strerror or str(error))


@functools.cache
def _warn_once(address: str, reason: str) -> None:
    """Log a failure once, not for every line."""
    _log.warning("cannot reach NOTIFY_SOCKET %s: %s", address, reason)
