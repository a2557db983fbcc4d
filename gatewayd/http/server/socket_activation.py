"""Systemd socket activation: sockets survive restarts, so that no connection is refused.

Connections opened while no daemon runs wait in the socket's backlog for the next daemon.
"""

from __future__ import annotations

import os
import socket
from collections.abc import MutableMapping

_FIRST = 3  # descriptors begin after standard error, see sd_listen_fds(3)
_HTTP = "http"
_VARIABLES = ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES")


class ActivationError(Exception):
    """A passed socket is unsuitable; the message says what to change in the socket unit."""


def inherited(environ: MutableMapping[str, str] | None = None) -> list[socket.socket]:
    """Return the listening sockets passed to this process; none without ``LISTEN_FDS``.

    The variables are removed, and children get no copy of the descriptors.

    Args:
        environ: the environment; None for the process's own.

    Raises:
        ActivationError: one of them is not a listening TCP socket, or has a wrong name.
    """
    environ = os.environ if environ is None else environ
    pid, count, names = (environ.pop(name, "") for name in _VARIABLES)
    # Children inherit variables that are meant for their parent only.
    if pid != str(os.getpid()) or not count.isdigit():
        return []
    labels = names.split(":") if names else []
    found = []
    for at in range(int(count)):
        # Sockets without a name are accepted, because there is only one kind.
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
