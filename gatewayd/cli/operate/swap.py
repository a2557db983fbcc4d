"""``gatewayd strategies`` and ``gatewayd swap``: show and replace strategies at runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from gatewayd.admin.client import AdminError, call
from gatewayd.cli.common import (
    AsJson,
    ConfigFile,
    console,
    fail,
    load_config,
    print_json,
    setting_value,
    whole,
)
from gatewayd.wire.models import about_model

Socket = Annotated[
    Path | None,
    typer.Option(
        "--socket",
        metavar="PATH",
        help="Admin socket of the daemon. Default: \\[admin] socket of the configuration.",
    ),
]
Model = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="NAME",
        help="Model of the daemon that the command is about. Default: the first.",
    ),
]
_STYLES = {"active": "green", "quarantined": "red"}


def strategies(
    model: Model = None,
    config: ConfigFile = None,
    socket: Socket = None,
    as_json: AsJson = False,
) -> None:
    """Show the strategies of a running daemon: name, state, faults and time spent."""
    found = call_admin(config, socket, "GET", "/admin/strategies", model=model)
    if as_json:
        print_json(found)
        return
    rows = sorted(found["strategies"], key=lambda row: (row["kind"], row["name"]))
    table = Table(
        whole("kind", [row["kind"] for row in rows]),
        whole("name", [row["name"] for row in rows]),
        "engine",
        "state",
        "faults",
        "calls",
        "ms/call",
        "longest ms",
        "seconds",
        box=None,
        pad_edge=False,
    )
    for row in rows:
        each = 1000 * row["seconds"] / max(1, row["calls"])
        table.add_row(
            row["kind"],
            row["name"],
            row["engine"],
            f"[{_STYLES.get(row['state'], 'dim')}]{row['state']}[/]",
            str(row["faults"]),
            str(row["calls"]),
            f"{each:.4f}",
            f"{1000 * row['longest']:.2f}",
            f"{row['seconds']:.3f}",
        )
    console().print(table)


def swap(
    kind: Annotated[
        str, typer.Argument(help="Kind of strategy, such as scheduler or logits_processor.")
    ],
    name: Annotated[
        str,
        typer.Argument(
            help="Name of the strategy; for a chain, several names separated by commas."
        ),
    ],
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Setting of the strategy; NAME.KEY=VALUE in a chain. Repeatable.",
        ),
    ] = None,
    model: Model = None,
    config: ConfigFile = None,
    socket: Socket = None,
) -> None:
    """Replace a strategy of a running daemon.

    The change survives restarts until the same key of the configuration file is edited.
    """
    is_chain = kind in ("logits_processor", "kv_tier")
    settings: dict[str, Any] = {}
    for one in set_ or []:
        key, equals, text = one.partition("=")
        owner, dot, inner = key.partition(".")
        # Only in a chain a key begins with the name of its strategy.
        if not equals or bool(dot) != is_chain:
            fail(f"--set {one} is not {'NAME.KEY=VALUE' if is_chain else 'KEY=VALUE'}", 2)
        if is_chain:
            settings.setdefault(owner, {})[inner] = setting_value(text)
        else:
            settings[key] = setting_value(text)
    # ``none`` empties a chain, and is the name of no strategy in it.
    names = [part for part in name.split(",") if part and (part, is_chain) != ("none", True)]
    body = {"name": names if is_chain else name, "settings": settings}
    answer = call_admin(config, socket, "PUT", f"/admin/strategies/{kind}", body, model=model)
    if not names or answer["names"] in ([], ["none"]):
        typer.echo(f"{kind} is now empty")
        return
    state = "with the previous state" if answer["has_state"] else "with a new state"
    typer.echo(f"{kind} is {', '.join(answer['names'])} now, {state}")


def call_admin(
    config: Path | None,
    socket: Path | None,
    method: str,
    route: str,
    body: object = None,
    wait: float = 0.0,
    model: str | None = None,
) -> Any:  # noqa: ANN401 - JSON
    """Call the admin API of a running daemon, or exit with an error if it refuses.

    ``wait`` extends the timeout by the seconds that the action itself may take. ``model`` is the
    one that the call is about, by default the first.
    """
    path = str(socket) if socket is not None else load_config(config).config.admin.socket
    if path is None:
        fail("no admin socket is configured: give --socket, or set [admin] socket")
    try:
        return call(path, method, about_model(route, model), body, wait)
    except AdminError as error:
        fail(str(error))
