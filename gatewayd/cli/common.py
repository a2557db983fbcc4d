"""What the commands share: the ``--config`` and ``--json`` options, and how errors end them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.table import Column

from gatewayd.config.load import ConfigError, LoadedConfig, load
from gatewayd.daemon.systemd.notify import notify
from gatewayd_engine.model import embedded

FAILURE = 1
_UNLIMITED = 10_000
BAD_CONFIG = 78  # EX_CONFIG of sysexits.h; the unit does not restart after it

ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config", metavar="FILE", help="Configuration file (TOML). Default: $GATEWAYD_CONFIG."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


def fail(message: str, code: int = FAILURE) -> NoReturn:
    """End with one sentence on standard error, and for the service manager if there is one."""
    notify("STATUS=" + " ".join(message.split()))
    typer.secho(f"gatewayd: {message}", fg="red", err=True)
    raise typer.Exit(code)


def load_config(
    file: Path | None, flags: Mapping[str, Any] | None = None, *, needs_secrets: bool = False
) -> LoadedConfig:
    """Load the configuration or end with what is wrong with it.

    Most commands do without credentials, which only the service may be able to read.
    """
    try:
        return load(file, flags, needs_secrets=needs_secrets)
    except ConfigError as error:
        for problem in error.problems[:-1]:
            typer.secho(f"gatewayd: {problem}", fg="red", err=True)
        fail(error.problems[-1], BAD_CONFIG)


def named_folder(given: str) -> str:
    """A model's folder, or that of the embedded model of this name."""
    if not Path(given).expanduser().is_dir() and given in embedded.names():
        return str(embedded.folder(given))
    return given


def setting_value(text: str) -> Any:  # noqa: ANN401 - whatever a setting takes
    """A number, true, false or a list as JSON; else the text itself."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def console() -> Console:
    """Where tables go: nothing is wrapped or cut for whoever is no terminal."""
    found = Console(highlight=False)
    return found if found.is_terminal else Console(highlight=False, width=_UNLIMITED)


def whole(header: str, values: Iterable[str]) -> Column:
    """A column that is not cut, however narrow the terminal is."""
    return Column(header, no_wrap=True, min_width=max(map(len, values), default=0))


def print_json(value: object) -> None:
    """Print for programs."""
    typer.echo(json.dumps(value, indent=2))
