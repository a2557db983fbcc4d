"""Commands ``gatewayd tui``, the console, and ``gatewayd top``, its text form for scripts."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

if TYPE_CHECKING:
    from gatewayd.wire.snapshot import Snapshot
    from gatewayd_tui.client import Source

Socket = Annotated[
    Path | None,
    typer.Option(
        "--socket",
        metavar="PATH",
        help="Admin socket of the daemon. Default: \\[admin] socket of the configuration.",
    ),
]
ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config", metavar="FILE", help="Configuration file (TOML). Default: $GATEWAYD_CONFIG."
    ),
]
Model = Annotated[
    str | None,
    typer.Option(
        "--model", metavar="NAME", help="Model of the daemon to show. Default: the first."
    ),
]
SnapshotFile = Annotated[
    Path | None,
    typer.Option(
        "--snapshot", metavar="FILE", help="Show a recording (see --record) instead of a daemon."
    ),
]
Interval = Annotated[
    float, typer.Option("--interval", help="Seconds between snapshots.", min=0.1, max=60.0)
]


def tui(
    socket: Socket = None,
    config: ConfigFile = None,
    model: Model = None,
    read_only: Annotated[
        bool, typer.Option("--read-only", help="Disable all actions that change the daemon.")
    ] = False,
    snapshot: SnapshotFile = None,
    record: Annotated[
        Path | None,
        typer.Option("--record", metavar="FILE", help="Append every snapshot to this file."),
    ] = None,
    theme: Annotated[
        str | None, typer.Option("--theme", help="Color theme, such as nord or ansi-dark.")
    ] = None,
    interval: Interval = 0.5,
    plugin: Annotated[
        list[str] | None,
        typer.Option(
            "--plugin", metavar="NAME", help="Load the console panels of this plugin. Repeatable."
        ),
    ] = None,
    serve: Annotated[
        bool, typer.Option("--serve", help="Serve the console to a browser and print its URL.")
    ] = False,
    host: Annotated[
        str, typer.Option("--host", help="Address to listen on with --serve.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", help="TCP port to listen on with --serve.", min=1, max=65_535)
    ] = 8090,
    public_url: Annotated[
        str | None,
        typer.Option(
            "--public-url",
            metavar="URL",
            help="Public URL of the console with --serve, as browsers see it.",
        ),
    ] = None,
) -> None:
    """Open the terminal console: watch and operate a running daemon."""
    if serve:
        given = {
            "--socket": socket,
            "--config": config,
            "--model": model,
            "--snapshot": snapshot,
            "--record": record,
            "--theme": theme,
            "--interval": interval,
        }
        # The console of each page is a process of its own, with these arguments.
        words = [str(w) for name, each in given.items() if each is not None for w in (name, each)]
        words += [word for name in plugin or [] for word in ("--plugin", name)]
        _serve([*words, *(["--read-only"] if read_only else [])], host, port, public_url)
        return
    # Imported late: `--help` needs none of Textual.
    from gatewayd_tui.app import Console
    from gatewayd_tui.discovery import NoSocket, find_plugins
    from gatewayd_tui.extensions import load
    from gatewayd_tui.recording import Recorder

    source = _source(socket, config, model, snapshot)
    try:
        recorder = None if record is None else Recorder(record)
    except OSError as error:
        _fail(f"{record} cannot be written: {error.strerror or error}")
    try:
        added = load([*find_plugins(config), *(plugin or [])])
    except NoSocket as error:
        _fail(str(error))
    console = Console(
        source, read_only=read_only, interval=interval, recorder=recorder, added=added
    )
    if theme is not None:
        if theme not in console.available_themes:
            _fail(f"there is no theme {theme}: {', '.join(sorted(console.available_themes))}")
        console.theme = theme
    console.run()


def _serve(arguments: list[str], host: str, port: int, url: str | None) -> None:
    from gatewayd_tui.serve import BrowserConsole

    if host in ("0.0.0.0", "::") and url is None:
        _fail("--host on all addresses needs --public-url, the URL that browsers open")
    try:
        BrowserConsole(arguments, host, port, url).serve()
    except OSError as error:
        _fail(f"cannot listen on {host}:{port}: {error.strerror or error}")


def top(
    socket: Socket = None,
    config: ConfigFile = None,
    model: Model = None,
    snapshot: SnapshotFile = None,
    once: Annotated[bool, typer.Option("--once", help="Print one snapshot and exit.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print snapshots as JSON.")] = False,
    interval: Interval = 1.0,
) -> None:
    """Print live statistics of a running daemon as tables, or as JSON."""
    from gatewayd_tui.recording import line_of
    from gatewayd_tui.state import ConsoleState, advance
    from gatewayd_tui.top import follow, tables, terminal

    found = _snapshots(_source(socket, config, model, snapshot), interval, once=once)
    if as_json:
        for each in found:
            typer.echo(line_of(each), nl=False)
    elif once:
        for each in found:
            terminal().print(tables(advance(ConsoleState(), each)))
    else:
        with contextlib.suppress(KeyboardInterrupt):
            follow(accumulate(found, advance, initial=ConsoleState()), terminal())


def _snapshots(source: Source, interval: float, *, once: bool) -> Iterator[Snapshot]:
    """Iterate over the source's snapshots synchronously; a lost connection ends the command."""
    from gatewayd_tui.client import DaemonUnreachable

    # One loop for all snapshots, to which the connection belongs.
    with asyncio.Runner() as runner:
        try:
            if once:
                yield runner.run(source.snapshot())
                return
            stream = source.snapshots(interval)
            while (found := runner.run(_next(stream))) is not None:
                yield found
        except DaemonUnreachable as error:
            _fail(str(error))
        finally:
            runner.run(source.close())


async def _next(stream: AsyncIterator[Snapshot]) -> Snapshot | None:
    return await anext(stream, None)


def _source(
    socket: Path | None, config: Path | None, model: str | None, snapshot: Path | None
) -> Source:
    from gatewayd_tui.client import DaemonSource, DaemonUnreachable
    from gatewayd_tui.discovery import NoSocket, find_socket
    from gatewayd_tui.recording import Recorded, read

    if snapshot is not None:
        if model is not None:
            _fail("--model is for a daemon; a recording is of the model that was shown")
        try:
            # Read here, so that an unreadable recording is an error of the command.
            next(read(snapshot))
        except DaemonUnreachable as error:
            _fail(str(error))
        return Recorded(snapshot)
    try:
        return DaemonSource(find_socket(socket, config), model)
    except NoSocket as error:
        _fail(str(error))


def _fail(message: str) -> NoReturn:
    typer.secho(f"gatewayd: {message}", fg="red", err=True)
    raise typer.Exit(1)
