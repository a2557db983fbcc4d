"""Server of the admin API on a unix socket, with uvicorn."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from collections.abc import Iterator

import uvicorn

from gatewayd.admin.peer import AdminProtocol
from gatewayd.http.asgi import App
from gatewayd.http.server.listener import ListenError

_BACKLOG = 16
_MODE = 0o660


def listen_unix(path: str) -> socket.socket:
    """Bind a unix socket that only its owner and group may open.

    Raises:
        ListenError: another daemon listens there, or it cannot be created.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _clear(path)
        # Permissions from the start, so that other users can never open it.
        before = os.umask(0o777 & ~_MODE)
        try:
            listener.bind(path)
        finally:
            os.umask(before)
        os.chmod(path, _MODE)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise ListenError(f"cannot listen on {path}: {error.strerror or error}") from error
    listener.setblocking(False)
    return listener


def _clear(path: str) -> None:
    """Remove the socket of a daemon that has ended.

    Raises:
        OSError: it is not a socket, or a process listens there.
    """
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise OSError(0, "the path exists and is not a socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return
    raise OSError(0, "another daemon listens there")


class AdminServer(uvicorn.Server):
    """uvicorn for the admin app; the daemon owns the signals.

    Args:
        app: the admin API.
        path: path of the socket, which is removed at the end.
    """

    def __init__(self, app: App, path: str) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=AdminProtocol,
                ws="none",
                lifespan="off",
                interface="asgi3",
                proxy_headers=False,
                server_header=False,
                access_log=False,
                log_config=None,
                # Streams are ended before; a client that does not read must not delay the end.
                timeout_graceful_shutdown=1,
            )
        )
        self._path = path
        self.listener = listen_unix(path)

    async def run_until_stopped(self) -> None:
        """Serve until ``should_exit``, then remove the socket."""
        try:
            await self.serve([self.listener])
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the daemon."""
        yield
