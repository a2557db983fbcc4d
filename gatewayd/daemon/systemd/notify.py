"""Tells systemd about the daemon's state, where it asks (``Type=notify``)."""

from __future__ import annotations

import functools
import logging
import os
import socket

_log = logging.getLogger(__name__)


def notify(state: str) -> None:
    """Send lines such as ``READY=1`` or ``STATUS=...``; silent without ``NOTIFY_SOCKET``.

    A socket that is named and cannot be reached, or is not read, is logged: nobody waits for these
    lines there, and it must not keep the daemon from ending as it should.
    """
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            # "@" begins one of Linux's abstract names.
            sender.connect("\0" + address[1:] if address.startswith("@") else address)
            sender.send(state.encode())
    except OSError as error:
        _complain(address, error.strerror or str(error))


@functools.cache
def _complain(address: str, reason: str) -> None:
    """Say it once, not for every line."""
    _log.warning("cannot reach NOTIFY_SOCKET %s: %s", address, reason)
