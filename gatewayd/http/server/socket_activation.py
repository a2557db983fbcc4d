"""Sockets that systemd listens on for the daemon, so that a restart refuses no connection.

What clients open while no daemon runs waits in the socket; the next daemon finds it there.
"""

from __future__ import annotations

import os
import socket
from collections.abc import MutableMapping

_FIRST = 3  # descriptors begin after standard error, see sd_listen_fds(3)
_HTTP = "http"
_VARIABLES = ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES")


class ActivationError(Exception):
    """What was passed cannot be served; the sentence says what to write into the socket unit."""


def inherited(environ: MutableMapping[str, str] | None = None) -> list[socket.socket]:
    """Take the listening sockets that were passed to this process; none without ``LISTEN_FDS``.

    The variables are removed, and children get no copy of the descriptors.

    Args:
        environ: the environment; None takes the process's own.

    Raises:
        ActivationError: one of them is no listening TCP socket, or has another name.
    """
    environ = os.environ if environ is None else environ
    pid, count, names = (environ.pop(name, "") for name in _VARIABLES)
    if pid != str(os.getpid()) or not count.isdigit():
        return []
    labels = names.split(":") if names else []
    found = []
    for at in range(int(count)):
        # A socket without a name is ours all the same: there is only one kind.
        name = labels[at] if at < len(labels) else _HTTP
        found.append(_listener(_FIRST + at, name))
    return found


def _listener(fd: int, name: str) -> socket.socket:
    if name != _HTTP:
        raise ActivationError(
            f"systemd passes a socket named {name!r}; write FileDescriptorName={_HTTP} into its "
            "unit"
        )
    try:
        listener = socket.socket(fileno=fd)
        is_listening = listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    except OSError as error:
        raise ActivationError(f"descriptor {fd} is no socket: {error.strerror}") from error
    if not is_listening or listener.family not in (socket.AF_INET, socket.AF_INET6):
        raise ActivationError(
            f"the socket {name!r} does not listen on TCP; write ListenStream=ADDRESS:PORT and "
            "Accept=no into its unit"
        )
    listener.set_inheritable(False)
    listener.setblocking(False)
    return listener
