"""``gatewayd model``: models on this machine, and those of a running daemon."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote

import typer
from rich.filesize import decimal
from rich.markup import escape
from rich.table import Table

from gatewayd.cli.common import (
    AsJson,
    ConfigFile,
    console,
    print_json,
    whole,
)
from gatewayd.cli.operate.model_table import ADD_SECONDS, Settings, local_path, table_of
from gatewayd.cli.operate.stored_models import delete, list_models, pull
from gatewayd.cli.operate.swap import Socket, call_admin
from gatewayd.cli.operate.versions import deploy, promote, rollback, versions

app = typer.Typer(
    no_args_is_help=True,
    help="Fetch, list and delete models; load, unload and deploy the models of a running daemon.",
)
app.command()(pull)
app.command("list")(list_models)
app.command()(delete)
for command in (deploy, promote, rollback, versions):
    app.command()(command)

Name = Annotated[str, typer.Argument(metavar="NAME", help="Served name of the model.")]


@app.command()
def status(config: ConfigFile = None, socket: Socket = None, as_json: AsJson = False) -> None:
    """List the models of a running daemon: which are loaded, their memory and use."""
    found = call_admin(config, socket, "GET", "/admin/models")
    if as_json:
        print_json(found)
        return
    table = Table(
        whole("model", [escape(row["name"]) for row in found["models"]]),
        *("state", "memory", "loads", "load time", "requests"),
        box=None,
        pad_edge=False,
    )
    for row in found["models"]:
        table.add_row(
            escape(row["name"]),
            row["state"] + (", pinned" if row["is_pinned"] else ""),
            decimal(row["host_bytes"] + row["device_bytes"]),
            str(row["loads"]),
            f"{row['load_seconds']:.1f} s",
            str(row["num_requests"]),
        )
    console().print(table)
    for place in ("host", "device"):
        if (limit := found[f"{place}_limit"]) is not None:
            typer.echo(f"{place} memory: {decimal(found[f'{place}_bytes'])} of {decimal(limit)}")


@app.command()
def add(
    name: Name,
    path: Annotated[str, typer.Argument(metavar="PATH", help="As [model] path.")],
    names: Annotated[
        list[str] | None, typer.Option("--served-name", help="A further name; repeatable.")
    ] = None,
    settings: Settings = None,
    pinned: Annotated[
        bool, typer.Option("--pinned", help="Never unload it for another model.")
    ] = False,
    config: ConfigFile = None,
    socket: Socket = None,
) -> None:
    """Serve another model, from now on and after restarts."""
    table = table_of(local_path(path), settings)
    if names:
        table["served_names"] = names
    if pinned:
        table["pinned"] = True
    call_admin(config, socket, "PUT", _route(name), {"table": table}, wait=ADD_SECONDS)
    typer.echo(f"{name} is served; gatewayd model status shows when it is loaded")


@app.command()
def remove(
    name: Name,
    seconds: Annotated[
        float, typer.Option(min=0, max=3600, help="Grace period for running requests, in seconds.")
    ] = 10.0,
    config: ConfigFile = None,
    socket: Socket = None,
) -> None:
    """Stop serving a model, from now on and after restarts; its files stay."""
    call_admin(config, socket, "DELETE", _route(name), {"seconds": seconds}, wait=seconds + 10)
    typer.echo(f"{name} is removed")


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
