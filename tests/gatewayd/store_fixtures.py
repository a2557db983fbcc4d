"""Stores for tests: a new one, and one reopened."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gatewayd.config.tables import Config
from gatewayd.daemon.resources import PersistentResources


def copy_of(fresh: Path, folder: Path) -> Path:
    """An empty store."""
    shutil.copytree(fresh, folder)
    return folder


@contextmanager
def opened(folder: Path, **tables: Any) -> Iterator[PersistentResources]:
    """One life of a store; tables of the configuration by their names."""
    store = {**tables.pop("store", {}), "path": str(folder)}
    config = Config(**{**tables, "store": store})
    durable = PersistentResources(config)
    try:
        yield durable
    finally:
        durable.close()
