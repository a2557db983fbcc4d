"""``gatewayd prefix``: evict pages from the prefix cache of a running daemon."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlencode

import typer

from gatewayd.cli.common import ConfigFile, fail
from gatewayd.cli.operate.swap import Model, Socket, call_admin

app = typer.Typer(no_args_is_help=True, help="Manage the prefix cache of a running daemon.")


@app.callback()
def prefix() -> None:
    """Manage the prefix cache of a running daemon."""


@app.command()
def evict(
    page: Annotated[
        str | None,
        typer.Argument(metavar="ENGINE/PAGE", help="Evict this page and its descendants."),
    ] = None,
    tenant: Annotated[
        str | None, typer.Option(help="Evict all cached pages of this tenant.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Evict all cached pages.")] = False,
    model: Model = None,
    config: ConfigFile = None,
    socket: Socket = None,
) -> None:
    """Evict cached pages that no sequence uses."""
    if sum((page is not None, tenant is not None, everything)) != 1:
        fail("give one of ENGINE/PAGE, --tenant and --all", 2)
    route = "/admin/prefixes"
    if page is not None:
        engine, slash, number = page.partition("/")
        if not (slash and engine.isdecimal() and number.isdecimal()):
            fail(f"{page} is not ENGINE/PAGE, such as 0/17", 2)
        route += f"/{engine}/{number}"
    elif tenant is not None:
        route += f"?{urlencode({'tenant': tenant})}"
    found = call_admin(config, socket, "DELETE", route, model=model)
    stay = f"; {found['in_use']} are in use and stay" if found["in_use"] else ""
    typer.echo(f"{found['pages']} pages are free{stay}")
