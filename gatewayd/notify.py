"""Tells systemd about the daemon's state, where it asks (``Type=notify``)."""

from __future__ import annotations

import os
import socket


def notify(state: str) -> None:
    """Send lines such as ``READY=1`` or ``STATUS=...``; silent without ``NOTIFY_SOCKET``.

    Raises:
        OSError: the socket is named and cannot be reached.
    """
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    if address.startswith("@"):  # Linux's abstract names
        address = "\0" + address[1:]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
        sender.sendto(state.encode(), address)
