"""Tells systemd about the daemon's state, where it asks (``Type=notify``)."""

from __future__ import annotations

import logging
import os
import socket

_log = logging.getLogger(__name__)


def notify(state: str) -> None:
    """Send lines such as ``READY=1`` or ``STATUS=...``; silent without ``NOTIFY_SOCKET``.

    A socket that is named and cannot be reached is logged: nobody waits for these lines there, and
    it must not keep the daemon from ending as it should.
    """
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    if address.startswith("@"):  # Linux's abstract names
        address = "\0" + address[1:]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
        try:
            sender.sendto(state.encode(), address)
        except OSError as error:
            _log.warning("NOTIFY_SOCKET cannot be reached: %s", error)
