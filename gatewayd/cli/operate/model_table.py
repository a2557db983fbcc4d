"""The table of a model that a command adds: its path and ``--set`` options."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from gatewayd.cli.common import BAD_CONFIG, fail, setting_value
from gatewayd.config.models import EMBEDDED
from gatewayd.hub.reference import is_reference

ADD_SECONDS = 120.0
"""Time to read a large tokenizer, and to make the folder of a GGUF file."""

Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="A key of its table, such as engine.kv_memory=1GiB; repeatable.",
    ),
]


def table_of(path: str, settings: Sequence[str] | None) -> dict[str, Any]:
    """Return the table of a model, as ``[models.NAME]`` of the configuration."""
    table: dict[str, Any] = {"path": path}
    for one in settings or ():
        key, sign, value = one.partition("=")
        if not sign:
            fail(f"--set {one}: write KEY=VALUE", BAD_CONFIG)
        *tables, last = key.split(".")
        here = table
        for part in tables:
            here = here.setdefault(part, {})
        here[last] = setting_value(value)
    return table


def local_path(path: str) -> str:
    """Make the path of a file or folder absolute: the daemon has another working directory."""
    is_local = not is_reference(path) and not path.startswith(EMBEDDED)
    return str(Path(path).expanduser().absolute()) if is_local else path
