"""``gatewayd pause``, ``resume`` and ``drain``: admission control of a running daemon."""

from __future__ import annotations

from typing import Annotated

import typer

from gatewayd.cli.common import ConfigFile
from gatewayd.cli.durations import seconds_of
from gatewayd.cli.operate.swap import Model, Socket, call_admin


def pause(
    time: Annotated[
        str | None,
        typer.Option(
            "--for",
            metavar="TIME",
            help="How long to pause, such as 90s, 10m or 2h. Default: until resumed.",
        ),
    ] = None,
    model: Model = None,
    config: ConfigFile = None,
    socket: Socket = None,
) -> None:
    """Refuse new requests with 503; queued and running requests continue."""
    seconds = None if time is None else seconds_of("--for", time)
    call_admin(config, socket, "POST", "/admin/pause", {"seconds": seconds}, model=model)
    typer.echo("new requests are refused " + ("until resumed" if time is None else f"for {time}"))


def resume(model: Model = None, config: ConfigFile = None, socket: Socket = None) -> None:
    """Resume admission of new requests."""
    found = call_admin(config, socket, "POST", "/admin/resume", model=model)
    typer.echo(f"{model or 'the daemon'} is {found['state']}")


def drain(config: ConfigFile = None, socket: Socket = None) -> None:
    """Refuse new requests, finish the present ones, then stop (as SIGTERM does)."""
    call_admin(config, socket, "POST", "/admin/drain")
    typer.echo("draining: the daemon finishes its requests, then stops")
