"""``gatewayd model``: take the model of a running daemon out of memory, and back."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote

import typer

from gatewayd.cli.common import ConfigFile
from gatewayd.cli.operate.swap import Socket, ask

app = typer.Typer(no_args_is_help=True, help="The model of a running daemon, in memory or not.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="As clients call it.")]


@app.command()
def unload(
    name: Name,
    seconds: Annotated[
        float, typer.Option(min=0, max=3600, help="That requests have which run.")
    ] = 10.0,
    config: ConfigFile = None,
    socket: Socket = None,
) -> None:
    """End the engines, so that their memory is free; requests are refused until it is loaded."""
    ask(config, socket, "POST", f"{_route(name)}/unload", {"seconds": seconds}, wait=seconds)
    typer.echo(f"{name} is unloaded")


@app.command()
def load(name: Name, config: ConfigFile = None, socket: Socket = None) -> None:
    """Start the engines again; requests wait for them."""
    found = ask(config, socket, "POST", f"{_route(name)}/load")
    for engine, state in found["replicas"].items():
        typer.echo(f"engine {engine}: {state}")


def _route(name: str) -> str:
    return f"/admin/models/{quote(name, safe='')}"
