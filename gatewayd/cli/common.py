"""Helpers shared by the commands: ``--config`` and ``--json``, errors, tables."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.table import Column

from gatewayd.config.catalogue import ModelConfig, model_configs
from gatewayd.config.load import ConfigError, LoadedConfig, load
from gatewayd.config.tables import Config
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
    """Exit with a message on standard error, which the service manager gets as its status."""
    notify("STATUS=" + " ".join(message.split()))
    typer.secho(f"gatewayd: {message}", fg="red", err=True)
    raise typer.Exit(code)


def load_config(
    file: Path | None,
    flags: Mapping[str, Any] | None = None,
    *,
    needs_secrets: bool = False,
    options: Mapping[str, str] | None = None,
) -> LoadedConfig:
    """Load the configuration, or exit with a list of what is wrong with it.

    Most commands need no secrets, which only the service may be able to read.
    """
    try:
        return load(file, flags, needs_secrets=needs_secrets, options=options)
    except ConfigError as error:
        for problem in error.problems[:-1]:
            typer.secho(f"gatewayd: {problem}", fg="red", err=True)
        fail(error.problems[-1], BAD_CONFIG)


def load_model_config(file: Path | None, flags: Mapping[str, Any] | None = None) -> Config:
    """Load the configuration of a command about the first model, or exit with what is wrong."""
    first, *_ = models_in(load_config(file, flags).config, flags or {})
    _check_folder(first)
    return first.config


def load_model_configs(file: Path | None, flags: Mapping[str, Any]) -> list[ModelConfig]:
    """Load the configurations of all models, or exit with what is wrong."""
    models = models_in(load_config(file, flags).config, flags)
    for model in models:
        _check_folder(model)
    return models


def models_in(config: Config, flags: Mapping[str, Any]) -> list[ModelConfig]:
    """The models that a command is about: that of the command line alone, else all."""
    models = model_configs(config)
    return models[:1] if "model.path" in flags else models


def _check_folder(model: ModelConfig) -> None:
    # Late: other commands need nothing of engines.
    from gatewayd.engines.replicas.launch import model_folder

    try:
        model_folder(model.config)
    except ValueError as error:
        fail(str(error) if model.name is None else f"{model.table}: {error}")


def named_folder(given: str) -> str:
    """Resolve the name of an embedded model to its folder; return any other path unchanged."""
    if given in embedded.names() and not Path(given).expanduser().is_dir():
        return str(embedded.folder(given))
    return given


def setting_value(text: str) -> Any:  # noqa: ANN401 - whatever a setting takes
    """Parse a setting as JSON; return text that is not JSON unchanged."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def console() -> Console:
    """Make a console for tables, without wrapping or truncation if stdout is not a terminal."""
    found = Console(highlight=False)
    # rich assumes 80 columns for a pipe and would cut the cells.
    return found if found.is_terminal else Console(highlight=False, width=_UNLIMITED)


def whole(header: str, values: Iterable[str]) -> Column:
    """Make a table column that is never truncated, however narrow the terminal is."""
    return Column(header, no_wrap=True, min_width=max(map(len, values), default=0))


def print_json(value: object) -> None:
    """Print a value as indented JSON."""
    typer.echo(json.dumps(value, indent=2))
