"""``gatewayd usage`` and ``gatewayd audit``: usage reports and the audit log."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.table import Table

from gatewayd.cli.common import AsJson, ConfigFile, console, print_json, whole
from gatewayd.cli.durations import whole_seconds_of
from gatewayd.cli.operate.swap import Socket
from gatewayd.cli.store_access import run_action
from gatewayd.cli.tenants.tenant import money

_BY = ("tenant", "key", "model")


def usage(
    tenant: Annotated[
        str | None,
        typer.Argument(metavar="TENANT", help="Tenant to report on. Default: all tenants."),
    ] = None,
    by: Annotated[str, typer.Option("--by", help="Group by tenant, key or model.")] = "tenant",
    last: Annotated[
        str | None,
        typer.Option(
            "--last", metavar="TIME", help="Time range to report, such as 24h or 30d. Default: all."
        ),
    ] = None,
    config: ConfigFile = None,
    socket: Socket = None,
    as_json: AsJson = False,
) -> None:
    """Report usage: requests, tokens, money and engine time."""
    since = None
    if last is not None:
        since = str(int(time.time()) - whole_seconds_of("--last", last))
    found = run_action(config, socket, "GET", "/admin/usage", by=by, tenant=tenant, since=since)
    if as_json:
        print_json(found)
        return
    names = ["tenant", *([{"key": "key_id"}.get(by, by)] if by != "tenant" else [])]
    table = Table(
        *[whole(name, [str(row[name] or "-") for row in found]) for name in names],
        *("requests", "prompt", "cached", "generated", "money", "engine s"),
        box=None,
        pad_edge=False,
    )
    for row in found:
        counts = ("requests", "prompt_tokens", "cached_tokens", "completion_tokens")
        table.add_row(
            *[str(row[name] or "-") for name in names],
            *[str(row[name]) for name in counts],
            money(row["micros"]),
            f"{row['engine_seconds']:.3f}",
        )
    console().print(table)


def audit(
    limit: Annotated[
        int,
        typer.Option(
            "--limit",
            min=1,
            max=10_000,
            help="Maximum number of audit records to show, latest first.",
        ),
    ] = 100,
    head: Annotated[
        str | None,
        typer.Option(
            "--head",
            metavar="N:SEAL",
            help="Verify that this audit head, copied from the log, is part of the audit.",
        ),
    ] = None,
    accept: Annotated[
        bool,
        typer.Option(
            "--accept",
            help="Accept the store as it is now; the faults found are recorded in the audit.",
        ),
    ] = False,
    config: ConfigFile = None,
    socket: Socket = None,
    as_json: AsJson = False,
) -> None:
    """Show the audit log of tenants, keys and prices, latest first, and verify the store.

    It verifies the audit and the seals of tenants, keys, prices and budgets; the exit status is 1
    if something is wrong.
    """
    if accept:
        accepted = run_action(config, socket, "POST", "/admin/audit/accept")["accepted"]
        for fault in accepted or ["nothing is wrong"]:
            typer.echo(f"accepted: {fault}" if accepted else fault)
        return
    found = run_action(config, socket, "GET", "/admin/audit", limit=str(limit), head=head)
    if as_json:
        print_json(found)
        return
    table = Table("when", "what", "to", "by", "how", box=None, pad_edge=False)
    for row in found["rows"]:
        at = datetime.fromtimestamp(row["at"], UTC).strftime("%Y-%m-%d %H:%M:%S")
        table.add_row(at, row["action"], row["target"], row["actor"], row["detail"])
    console().print(table)
    typer.echo(f"the audit ends with {found['head']}")
    for fault in found["faults"]:
        typer.secho(f"gatewayd: {fault}", fg="red", err=True)
    if found["faults"]:
        raise typer.Exit(1)
