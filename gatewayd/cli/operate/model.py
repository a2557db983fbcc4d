"""``gatewayd model``: models on this machine, and the model of a running daemon."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote

import typer

from gatewayd.cli.common import ConfigFile
from gatewayd.cli.operate.stored_models import delete, list_models, pull
from gatewayd.cli.operate.swap import Socket, call_admin

app = typer.Typer(
    no_args_is_help=True,
    help="Fetch, list and delete models; load or unload the model of a running daemon.",
)
app.command()(pull)
app.command("list")(list_models)
app.command()(delete)

Name = Annotated[str, typer.Argument(metavar="NAME", help="Served name of the model.")]


@app.command()
def unload(
    name: Name,
    seconds: Annotated[
        float, typer.Option(min=0, max=3600, help="Grace period for running requests, in seconds.")
    ] = 10.0,
    config: ConfigFile = None,
    socket: Socket = None,
) -> None:
    """Stop the engines and free their memory; requests are refused until it is loaded again."""
    call_admin(config, socket, "POST", f"{_route(name)}/unload", {"seconds": seconds}, wait=seconds)
    typer.echo(f"{name} is unloaded")


@app.command()
def load(name: Name, config: ConfigFile = None, socket: Socket = None) -> None:
    """Start the engines again; requests wait until they are ready."""
    found = call_admin(config, socket, "POST", f"{_route(name)}/load")
    for engine, state in found["replicas"].items():
        typer.echo(f"engine {engine}: {state}")


def _route(name: str) -> str:
    return f"/admin/models/{quote(name, safe='')}"
