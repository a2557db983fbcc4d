"""``gatewayd key``: the API keys of tenants."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from rich.table import Table

from gatewayd.cli.common import AsJson, ConfigFile, console, print_json, whole
from gatewayd.cli.durations import whole_seconds_of
from gatewayd.cli.operate.swap import Socket
from gatewayd.cli.store_access import act

app = typer.Typer(no_args_is_help=True, help="API keys: make, list, rotate and revoke them.")

KeyId = Annotated[str, typer.Argument(metavar="KEY", help="Its id, as list shows it.")]


@app.command()
def create(
    tenant: Annotated[str, typer.Argument(metavar="TENANT")],
    name: Annotated[str, typer.Option("--name", help="For people.")] = "",
    scope: Annotated[
        list[str] | None,
        typer.Option(
            "--scope",
            help="infer, infer:MODEL, files, batches, models:read, metrics:read, or * for all; "
            "repeat it. Usually the first and those of files, batches and models.",
        ),
    ] = None,
    time: Annotated[
        str | None, typer.Option("--for", metavar="TIME", help="Such as 12h or 90d; else for ever.")
    ] = None,
    config: ConfigFile = None,
    socket: Socket = None,
    as_json: AsJson = False,
) -> None:
    """Make a key and show it, this once."""
    body: dict[str, Any] = {"tenant": tenant, "name": name}
    if scope:
        body["scopes"] = scope
    if time is not None:
        body["seconds"] = whole_seconds_of("--for", time)
    _show(act(config, socket, "POST", "/admin/keys", body), as_json)


@app.command()
def rotate(
    key: KeyId,
    overlap: Annotated[
        str, typer.Option("--overlap", metavar="TIME", help="That the old secret is good, too.")
    ] = "0s",
    config: ConfigFile = None,
    socket: Socket = None,
    as_json: AsJson = False,
) -> None:
    """Give a key another secret and show it, this once."""
    body = {"overlap_seconds": whole_seconds_of("--overlap", overlap)}
    _show(act(config, socket, "POST", f"/admin/keys/{key}/rotate", body), as_json)


@app.command()
def revoke(key: KeyId, config: ConfigFile = None, socket: Socket = None) -> None:
    """End a key, and at once whatever runs with it."""
    act(config, socket, "DELETE", f"/admin/keys/{key}")
    typer.echo(f"key {key} is revoked")


@app.command("list")
def list_(config: ConfigFile = None, socket: Socket = None, as_json: AsJson = False) -> None:
    """Show all keys; never their secrets, which nobody has kept."""
    found = act(config, socket, "GET", "/admin/keys")
    if as_json:
        print_json(found)
        return
    table = Table(
        whole("key", [row["key"] for row in found]),
        *("tenant", "name", "scopes", "made", "expires", "revoked"),
        box=None,
        pad_edge=False,
    )
    for row in found:
        times = [_day(row[name]) for name in ("created_at", "expires_at", "revoked_at")]
        table.add_row(row["key"], row["tenant"], row["name"], " ".join(row["scopes"]), *times)
    console().print(table)


def _show(made: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(made)
        return
    typer.echo(made["secret"])
    typer.secho("This is shown once: keep it.", fg="yellow", err=True)


def _day(seconds: int | None) -> str:
    return "-" if seconds is None else datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d")
