"""A client of the admin API, over its unix socket."""

from __future__ import annotations

import http.client
import json
import socket
from typing import Any

_SECONDS = 60.0


class AdminError(Exception):
    """The daemon cannot be reached, or refuses; the sentence says why."""


class _Connection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=_SECONDS)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def call(path: str, method: str, route: str, body: object = None) -> Any:  # noqa: ANN401 - JSON
    """One request to the daemon behind a socket.

    Raises:
        AdminError: no daemon is there, it lets us not in, or it says no.
    """
    connection = _Connection(path)
    try:
        content = None if body is None else json.dumps(body)
        headers = {} if body is None else {"content-type": "application/json"}
        connection.request(method, route, content, headers)
        answer = connection.getresponse()
        value = json.loads(answer.read())
    except (http.client.HTTPException, ConnectionResetError) as error:
        raise AdminError(f"the daemon behind {path} does not let you in") from error
    except OSError as error:
        raise AdminError(f"no daemon answers at {path}: {error.strerror or error}") from error
    finally:
        connection.close()
    if answer.status != 200:
        raise AdminError(value["error"]["message"])
    return value
