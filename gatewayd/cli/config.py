"""``gatewayd config``: show or validate the configuration."""

from __future__ import annotations

import typer
from rich.console import Console
from rich.table import Column, Table

from gatewayd.cli.common import BAD_CONFIG, AsJson, ConfigFile, load_config, print_json
from gatewayd.config.load import DEFAULT

app = typer.Typer(no_args_is_help=True, help="Show or check the configuration.")


@app.command()
def show(config: ConfigFile = None, as_json: AsJson = False) -> None:
    """Print every value and where it comes from."""
    settings = load_config(config).settings()
    if as_json:
        print_json([{"key": s.key, "value": s.value, "origin": s.origin} for s in settings])
        return
    # Keys are not truncated, so that they can be copied.
    columns = (Column("key", no_wrap=True), Column("value", overflow="fold"), "origin")
    table = Table(*columns, box=None, pad_edge=False)
    for setting in settings:
        value = "" if setting.value is None else str(setting.value)
        style = "dim" if setting.origin == DEFAULT else "bold"
        table.add_row(setting.key, value, setting.origin, style=style)
    Console().print(table)


@app.command()
def check(config: ConfigFile = None, as_json: AsJson = False) -> None:
    """Validate the configuration without starting anything; exit status 78 if it is invalid."""
    from gatewayd.plugins.loaded import check_strategies

    loaded = load_config(config)
    problems = check_strategies(loaded.config)
    if as_json:
        print_json({"ok": not problems, "problems": problems})
    elif problems:
        for problem in problems:
            typer.secho(problem, fg="red", err=True)
    else:
        typer.echo("the configuration is valid")
    if problems:
        raise typer.Exit(BAD_CONFIG)
