"""Where the daemon's socket is: a flag, the environment, or the configuration file."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path


class NoSocket(Exception):
    """It is not known; the sentence says what to do."""


def find_socket(
    flag: Path | None, config: Path | None, environ: Mapping[str, str] = os.environ
) -> str:
    """The path of the admin API's socket, from what the daemon itself reads.

    Raises:
        NoSocket: none is named, or the file cannot be read.
    """
    if flag is not None:
        return str(flag)
    named = environ.get("GATEWAYD_ADMIN__SOCKET")
    if named:
        return named
    file = config or (Path(environ["GATEWAYD_CONFIG"]) if environ.get("GATEWAYD_CONFIG") else None)
    if file is None:
        raise NoSocket("say which daemon: --socket PATH, or --config FILE that has [admin] socket")
    try:
        table = tomllib.loads(file.read_text()).get("admin", {})
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise NoSocket(f"{file} cannot be read: {error}") from error
    socket = table.get("socket") if isinstance(table, dict) else None
    if not isinstance(socket, str):
        raise NoSocket(f"{file} has no [admin] socket; set it, or give --socket PATH")
    return socket
