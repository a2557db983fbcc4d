"""Small cache files: validated when read, written atomically."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TypeVar

import msgspec

from gatewayd_engine.process.file_writes import replace_file

_MOST_BYTES = 16 << 20
_log = logging.getLogger(__name__)
T = TypeVar("T")


def folder() -> Path:
    """Return the folder of tables: ``$XDG_CACHE_HOME/gatewayd/tuning``, or in ``~/.cache``."""
    base = os.environ.get("XDG_CACHE_HOME")
    return Path(base if base else Path.home() / ".cache") / "gatewayd" / "tuning"


def read(path: Path | None, kind: type[T]) -> T | None:
    """Decode a JSON file; return None, with a warning, if it is invalid."""
    if path is None:
        return None
    try:
        # Before reading: a damaged or foreign file must not fill the memory.
        if path.stat().st_size > _MOST_BYTES:
            raise ValueError(f"it is larger than {_MOST_BYTES} bytes")
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        return None
    # RecursionError: JSON that is nested too deeply.
    except (OSError, ValueError, msgspec.MsgspecError, RecursionError) as error:
        _log.warning("%s cannot be used and will be rewritten: %s", path, error)
        return None


def write(path: Path | None, contents: object) -> None:
    """Replace a file atomically; if that fails, only log a warning."""
    if path is None:
        return
    text = msgspec.json.format(msgspec.json.encode(contents), indent=1)
    try:
        # Not synced: a lost file is measured again.
        replace_file(path, text)
    except OSError as error:
        _log.warning("%s cannot be written, so it will be measured again: %s", path, error)
