"""Client of the admin API, over its unix socket."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from gatewayd.wire.snapshot import Snapshot

_SECONDS = 60.0
_DATA = b"data: "


class AdminError(Exception):
    """The daemon cannot be reached, or refuses; the message has the reason."""


class _Connection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=_SECONDS)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def call(path: str, method: str, route: str, body: object = None, wait: float = 0.0) -> Any:  # noqa: ANN401 - JSON
    """Send one request to a daemon, with ``wait`` seconds in addition to the usual timeout.

    Raises:
        AdminError: no daemon listens, it denies access, or it refuses the request.
    """
    with _connected(path) as connection:
        # Effective, because the connection is made by the request below.
        connection.timeout = _SECONDS + wait
        content = None if body is None else json.dumps(body)
        headers = {} if body is None else {"content-type": "application/json"}
        connection.request(method, route, content, headers)
        return _value(connection.getresponse())


def stream_snapshots(path: str, interval: float = 0.5) -> Generator[Snapshot, None, None]:
    """Stream snapshots of a daemon, until it ends the stream.

    Args:
        path: path of the socket.
        interval: seconds between two snapshots.

    Raises:
        AdminError: no daemon listens, it denies access, refuses, or has another version.
    """
    with _connected(path) as connection:
        connection.request("GET", f"/admin/stream?interval={interval:g}")
        answer = connection.getresponse()
        if answer.status != 200:
            _value(answer)
        # Keep-alive comments arrive well within the timeout, however rare the snapshots are.
        for line in answer:
            if line.startswith(_DATA):
                try:
                    yield msgspec.json.decode(line[len(_DATA) :], type=Snapshot)
                except msgspec.ValidationError as error:
                    raise AdminError(
                        f"the daemon's snapshots are of another form: {error}"
                    ) from error


@contextmanager
def _connected(path: str) -> Iterator[http.client.HTTPConnection]:
    connection = _Connection(path)
    try:
        yield connection
    # The daemon aborts connections of other users before it reads a byte.
    except (http.client.HTTPException, ConnectionResetError, BrokenPipeError) as error:
        raise AdminError(
            f"the daemon at {path} denies access: run as its own user or as root"
        ) from error
    except OSError as error:
        raise AdminError(f"no daemon answers at {path}: {error.strerror or error}") from error
    finally:
        connection.close()


def _value(answer: http.client.HTTPResponse) -> Any:  # noqa: ANN401 - JSON
    value = json.loads(answer.read())
    if answer.status != 200:
        raise AdminError(value["error"]["message"])
    return value
