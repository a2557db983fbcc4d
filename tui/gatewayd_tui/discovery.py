"""Discovery of admin socket and console plugins: flag, environment or configuration file."""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class NoSocket(Exception):
    """No admin socket or plugin list is configured; the message says what to do."""


def find_socket(
    flag: Path | None, config: Path | None, environ: Mapping[str, str] = os.environ
) -> str:
    """Return the path of the admin socket, from the daemon's own configuration.

    Raises:
        NoSocket: none is named, or the file cannot be read.
    """
    if flag is not None:
        return str(flag)
    # The environment overrides the file, as for the daemon.
    named = environ.get("GATEWAYD_ADMIN__SOCKET")
    if named:
        return named
    file = _file(config, environ)
    if file is None:
        raise NoSocket("no daemon given: use --socket PATH, or --config FILE with [admin] socket")
    socket = _read(file, "admin").get("socket")
    if not isinstance(socket, str):
        raise NoSocket(f"{file} has no [admin] socket; set it, or give --socket PATH")
    return socket


def find_plugins(config: Path | None, environ: Mapping[str, str] = os.environ) -> list[str]:
    """Return the names of console plugins, from the daemon's own configuration.

    Raises:
        NoSocket: the value is not a list of names.
    """
    named = environ.get("GATEWAYD_PLUGINS__CONSOLE")
    file = _file(config, environ)
    found: object = [] if file is None else _read(file, "plugins").get("console", [])
    if named is not None:
        try:
            found = json.loads(named)
        except ValueError:
            found = None
    if not isinstance(found, list) or not all(isinstance(name, str) for name in found):
        raise NoSocket('[plugins] console must be a list of names, such as ["crowd"]')
    return found


def _file(config: Path | None, environ: Mapping[str, str]) -> Path | None:
    named = environ.get("GATEWAYD_CONFIG")
    return config or (Path(named) if named else None)


def _read(file: Path, table: str) -> dict[str, Any]:
    try:
        found = tomllib.loads(file.read_text()).get(table, {})
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise NoSocket(f"{file} cannot be read: {error}") from error
    return found if isinstance(found, dict) else {}
