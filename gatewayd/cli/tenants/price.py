"""``gatewayd price``: what the tokens of models cost."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table

from gatewayd.cli.common import AsJson, ConfigFile, console, print_json, whole
from gatewayd.cli.operate.swap import Socket
from gatewayd.cli.store_access import act
from gatewayd.cli.tenants.tenant import micros_of, money

app = typer.Typer(no_args_is_help=True, help="Prices of models, for a million tokens.")

Model = Annotated[str, typer.Argument(metavar="MODEL", help="Its name; * for all others.")]


@app.command("set")
def set_(
    model: Model,
    input_: Annotated[str, typer.Option("--input", metavar="AMOUNT", help="Of prompts.")],
    output: Annotated[str, typer.Option("--output", metavar="AMOUNT", help="Of answers.")],
    cached: Annotated[
        str | None,
        typer.Option("--cached", metavar="AMOUNT", help="Of prompts in the cache; else as input."),
    ] = None,
    config: ConfigFile = None,
    socket: Socket = None,
) -> None:
    """Set what a million tokens of a model cost, from now on."""
    body = {
        "model": model,
        "input": micros_of(input_, "--input"),
        "output": micros_of(output, "--output"),
        "cached": None if cached is None else micros_of(cached, "--cached"),
    }
    act(config, socket, "PUT", "/admin/prices", body)
    typer.echo(f"{model} has its price")


@app.command()
def remove(model: Model, config: ConfigFile = None, socket: Socket = None) -> None:
    """Forget the price of a model."""
    act(config, socket, "DELETE", f"/admin/prices/{model}")
    typer.echo(f"{model} has no price of its own")


@app.command("list")
def list_(config: ConfigFile = None, socket: Socket = None, as_json: AsJson = False) -> None:
    """Show all prices."""
    found = act(config, socket, "GET", "/admin/prices")
    if as_json:
        print_json(found)
        return
    models = whole("model", [row["model"] for row in found])
    table = Table(models, "input", "cached", "output", box=None, pad_edge=False)
    for row in found:
        table.add_row(row["model"], *[money(row[name]) for name in ("input", "cached", "output")])
    console().print(table)
