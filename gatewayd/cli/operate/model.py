"""``gatewayd model``: models on this machine, and those of a running daemon."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import typer
from rich.filesize import decimal
from rich.markup import escape
from rich.table import Table

from gatewayd.cli.common import (
    BAD_CONFIG,
    AsJson,
    ConfigFile,
    console,
    fail,
    print_json,
    setting_value,
    whole,
)
from gatewayd.cli.operate.stored_models import delete, list_models, pull
from gatewayd.cli.operate.swap import Socket, call_admin
from gatewayd.config.models import EMBEDDED
from gatewayd.hub.reference import is_reference

app = typer.Typer(
    no_args_is_help=True,
    help="Fetch, list and delete models; load or unload the models of a running daemon.",
)
app.command()(pull)
app.command("list")(list_models)
app.command()(delete)

_ADD_SECONDS = 120.0
"""Time to read a large tokenizer, and to make the folder of a GGUF file."""

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
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="A key of its table, such as engine.kv_memory=1GiB; repeatable.",
        ),
    ] = None,
    pinned: Annotated[
        bool, typer.Option("--pinned", help="Never unload it for another model.")
    ] = False,
    config: ConfigFile = None,
    socket: Socket = None,
) -> None:
    """Serve another model, from now on and after restarts."""
    table: dict[str, Any] = {"path": local_path(path)}
    if names:
        table["served_names"] = names
    if pinned:
        table["pinned"] = True
    for one in settings or ():
        key, sign, value = one.partition("=")
        if not sign:
            fail(f"--set {one}: write KEY=VALUE", BAD_CONFIG)
        *tables, last = key.split(".")
        here = table
        for part in tables:
            here = here.setdefault(part, {})
        here[last] = setting_value(value)
    call_admin(config, socket, "PUT", _route(name), {"table": table}, wait=_ADD_SECONDS)
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


def local_path(path: str) -> str:
    """Make the path of a file or folder absolute: the daemon has another working directory."""
    is_local = not is_reference(path) and not path.startswith(EMBEDDED)
    return str(Path(path).expanduser().absolute()) if is_local else path


def _route(name: str) -> str:
    return f"/admin/models/{quote(name, safe='')}"
