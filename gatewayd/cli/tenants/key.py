"""``gatewayd key``: manage API keys of tenants."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from rich.table import Table

from gatewayd.cli.common import AsJson, ConfigFile, console, print_json, whole
from gatewayd.cli.durations import whole_seconds_of
from gatewayd.cli.operate.swap import Socket
from gatewayd.cli.store_access import run_action

app = typer.Typer(no_args_is_help=True, help="Create, list, rotate and revoke API keys.")

KeyId = Annotated[
    str, typer.Argument(metavar="KEY", help="Key id, as shown by `gatewayd key list`.")
]


@app.command()
def create(
    tenant: Annotated[
        str, typer.Argument(metavar="TENANT", help="Tenant that the key belongs to.")
    ],
    name: Annotated[str, typer.Option("--name", help="Label of the key, for humans.")] = "",
    scope: Annotated[
        list[str] | None,
        typer.Option(
            "--scope",
            help="Scope to grant: infer, infer:MODEL, files, batches, models:read, "
            "metrics:read, or * for all. Repeatable. Default: infer, files, batches and "
            "models:read.",
        ),
    ] = None,
    time: Annotated[
        str | None,
        typer.Option(
            "--for",
            metavar="TIME",
            help="Lifetime of the key, such as 12h or 90d. Default: unlimited.",
        ),
    ] = None,
    config: ConfigFile = None,
    socket: Socket = None,
    as_json: AsJson = False,
) -> None:
    """Create a key and show its secret once."""
    body: dict[str, Any] = {"tenant": tenant, "name": name}
    if scope:
        body["scopes"] = scope
    if time is not None:
        body["seconds"] = whole_seconds_of("--for", time)
    _show(run_action(config, socket, "POST", "/admin/keys", body), as_json)


@app.command()
def rotate(
    key: KeyId,
    overlap: Annotated[
        str,
        typer.Option(
            "--overlap",
            metavar="TIME",
            help="How long the old secret stays valid, such as 10m or 1d.",
        ),
    ] = "0s",
    config: ConfigFile = None,
    socket: Socket = None,
    as_json: AsJson = False,
) -> None:
    """Replace the secret of a key and show the new one once."""
    body = {"overlap_seconds": whole_seconds_of("--overlap", overlap)}
    _show(run_action(config, socket, "POST", f"/admin/keys/{key}/rotate", body), as_json)


@app.command()
def revoke(key: KeyId, config: ConfigFile = None, socket: Socket = None) -> None:
    """Revoke a key and cancel its running requests at once."""
    run_action(config, socket, "DELETE", f"/admin/keys/{key}")
    typer.echo(f"key {key} is revoked")


@app.command("list")
def list_(config: ConfigFile = None, socket: Socket = None, as_json: AsJson = False) -> None:
    """List all keys. Secrets are not stored and cannot be shown."""
    found = run_action(config, socket, "GET", "/admin/keys")
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
    typer.secho("The secret is shown only once: save it now.", fg="yellow", err=True)


def _day(seconds: int | None) -> str:
    return "-" if seconds is None else datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d")
