"""``gatewayd price``: manage token prices of models."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table

from gatewayd.cli.common import AsJson, ConfigFile, console, print_json, whole
from gatewayd.cli.operate.swap import Socket
from gatewayd.cli.store_access import run_action
from gatewayd.cli.tenants.tenant import micros_of, money

app = typer.Typer(no_args_is_help=True, help="Manage prices of models per million tokens.")

Model = Annotated[
    str, typer.Argument(metavar="MODEL", help="Served name of the model; * for all others.")
]


@app.command("set")
def set_(
    model: Model,
    input_: Annotated[
        str, typer.Option("--input", metavar="AMOUNT", help="Price of a million prompt tokens.")
    ],
    output: Annotated[
        str,
        typer.Option("--output", metavar="AMOUNT", help="Price of a million completion tokens."),
    ],
    cached: Annotated[
        str | None,
        typer.Option(
            "--cached",
            metavar="AMOUNT",
            help="Price of a million cached prompt tokens. Default: the input price.",
        ),
    ] = None,
    config: ConfigFile = None,
    socket: Socket = None,
) -> None:
    """Set the price of a model per million tokens, from now on."""
    body = {
        "model": model,
        "input": micros_of(input_, "--input"),
        "output": micros_of(output, "--output"),
        "cached": None if cached is None else micros_of(cached, "--cached"),
    }
    run_action(config, socket, "PUT", "/admin/prices", body)
    typer.echo(f"price of {model} is set")


@app.command()
def remove(model: Model, config: ConfigFile = None, socket: Socket = None) -> None:
    """Remove the price of a model."""
    run_action(config, socket, "DELETE", f"/admin/prices/{model}")
    typer.echo(f"price of {model} is removed")


@app.command("list")
def list_(config: ConfigFile = None, socket: Socket = None, as_json: AsJson = False) -> None:
    """List all prices."""
    found = run_action(config, socket, "GET", "/admin/prices")
    if as_json:
        print_json(found)
        return
    models = whole("model", [row["model"] for row in found])
    table = Table(models, "input", "cached", "output", box=None, pad_edge=False)
    for row in found:
        table.add_row(row["model"], *[money(row[name]) for name in ("input", "cached", "output")])
    console().print(table)
