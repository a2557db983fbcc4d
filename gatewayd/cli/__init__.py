"""Command line ``gatewayd``. A command's module is imported when it runs, not for ``--help``.

Exit status: 0 success, 1 failure, 2 wrong usage, 78 bad configuration.
"""

from __future__ import annotations

from typing import Annotated

import typer

from gatewayd import __version__
from gatewayd.cli.lazy import LazyGroup

app = typer.Typer(
    cls=LazyGroup,
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"gatewayd {__version__}")
        raise typer.Exit


@app.callback()
def gatewayd(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """LLM inference gateway and engine in one daemon; every policy is a plugin."""


def main() -> None:
    """Run the command line."""
    app(prog_name="gatewayd")
