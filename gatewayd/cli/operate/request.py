"""``gatewayd request``: cancel, hold, release or reprioritize a queued or running request."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote

import typer

from gatewayd.cli.common import ConfigFile
from gatewayd.cli.operate.swap import Socket, call_admin

app = typer.Typer(
    no_args_is_help=True, help="Manage queued and running requests by their x-request-id."
)

RequestId = Annotated[
    str, typer.Argument(metavar="ID", help="Request id (the x-request-id response header).")
]


@app.command()
def cancel(request: RequestId, config: ConfigFile = None, socket: Socket = None) -> None:
    """Cancel a request: its client gets the error `cancelled`."""
    found = call_admin(config, socket, "POST", _route(request, "cancel"))
    typer.echo(f"request {found['request']} is cancelled")


@app.command()
def hold(request: RequestId, config: ConfigFile = None, socket: Socket = None) -> None:
    """Hold a request: it is preempted and makes no progress until released."""
    found = call_admin(config, socket, "POST", _route(request, "hold"))
    typer.echo(f"request {found['request']} is held")


@app.command()
def release(request: RequestId, config: ConfigFile = None, socket: Socket = None) -> None:
    """Release a held request."""
    found = call_admin(config, socket, "POST", _route(request, "release"))
    typer.echo(f"request {found['request']} is released")


@app.command()
def bump(
    request: RequestId,
    priority: Annotated[
        str | None, typer.Option(help="New priority class: realtime, standard or batch.")
    ] = None,
    config: ConfigFile = None,
    socket: Socket = None,
) -> None:
    """Move a request to the front of its priority class, or to another class."""
    body = None if priority is None else {"priority": priority}
    found = call_admin(config, socket, "POST", _route(request, "bump"), body)
    where = "first in its class" if priority is None else f"of class {priority}"
    typer.echo(f"request {found['request']} is now {where}")


def _route(request: str, verb: str) -> str:
    return f"/admin/requests/{quote(request, safe='')}/{verb}"
