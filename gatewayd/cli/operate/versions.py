"""``gatewayd model deploy``, ``promote``, ``rollback``, ``versions``: two versions of one model."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated, Any
from urllib.parse import quote

import typer
from rich.markup import escape
from rich.table import Table

from gatewayd.cli.common import BAD_CONFIG, AsJson, ConfigFile, console, fail, print_json, whole
from gatewayd.cli.operate.model_table import ADD_SECONDS, Settings, local_path, table_of
from gatewayd.cli.operate.swap import Socket, call_admin

_SHARE = re.compile(r"(\d+(?:\.\d*)?)(%?)")

Name = Annotated[str, typer.Argument(metavar="NAME", help="Served name of the model.")]
Seconds = Annotated[
    float, typer.Option(min=0, max=3600, help="Grace period for running requests, in seconds.")
]


class StickyBy(StrEnum):
    """What keeps requests at one version."""

    KEY = "key"
    TENANT = "tenant"
    CONVERSATION = "conversation"


def _share(text: str) -> float:
    """Read a share, such as ``10%`` or ``0.1``."""
    if (found := _SHARE.fullmatch(text.strip())) is None:
        raise typer.BadParameter(f"{text!r} is no share: write 10% or 0.1")
    value = float(found[1]) / (100 if found[2] else 1)
    if value > 1:
        raise typer.BadParameter(f"{text} is more than all requests: write 10% or 0.1")
    return value


def _limit(text: str) -> float | str:
    return "off" if text == "off" else _share(text)


def deploy(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME[=PATH]",
            help="Served name of the model, and the path of its new version; without a path, the "
            "terms of the version on trial change.",
        ),
    ],
    weight: Annotated[
        float | None,
        typer.Option(
            parser=_share,
            metavar="SHARE",
            help="Share of requests that go to it; 10% at first.",
        ),
    ] = None,
    by: Annotated[
        StickyBy | None, typer.Option(help="What keeps requests at one version; key at first.")
    ] = None,
    shadow: Annotated[
        float | None,
        typer.Option(
            parser=_share,
            metavar="SHARE",
            help="Share of the other requests that are copied to it; answers are compared, and "
            "not sent.",
        ),
    ] = None,
    most_errors: Annotated[
        str | None,
        typer.Option(
            parser=_limit,
            metavar="SHARE|off",
            help="It is rolled back if more of its requests fail; 5% at first.",
        ),
    ] = None,
    least_goodput: Annotated[
        str | None,
        typer.Option(
            parser=_limit,
            metavar="SHARE|off",
            help="It is rolled back if fewer of its requests meet their SLOs; off at first.",
        ),
    ] = None,
    least_requests: Annotated[
        int | None,
        typer.Option(min=1, max=1_000_000, help="Requests before it is judged; 50 at first."),
    ] = None,
    settings: Settings = None,
    config: ConfigFile = None,
    socket: Socket = None,
) -> None:
    """Serve a new version of a model for a share of its requests, beside the present one."""
    name, sign, path = name.partition("=")
    body: dict[str, Any] = {}
    if sign:
        body["table"] = table_of(local_path(path), settings)
    elif settings:
        fail("--set is for a new version: write NAME=PATH", BAD_CONFIG)
    terms = {
        "weight": weight,
        "by": None if by is None else by.value,
        "shadow": shadow,
        "most_errors": most_errors,
        "least_goodput": least_goodput,
        "least_requests": least_requests,
    }
    body |= {
        key: None if value == "off" else value for key, value in terms.items() if value is not None
    }
    done = call_admin(config, socket, "PUT", _route(name), body, wait=ADD_SECONDS)
    typer.echo(f"{done['version']} is {done['done']}; gatewayd model versions shows its figures")


def promote(
    name: Name, seconds: Seconds = 600.0, config: ConfigFile = None, socket: Socket = None
) -> None:
    """Replace a model by its version on trial, from now on and after restarts."""
    route = f"{_route(name)}/promote"
    done = call_admin(config, socket, "POST", route, {"seconds": seconds})
    typer.echo(f"{name} is {done['version']} from now on")


def rollback(
    name: Name, seconds: Seconds = 600.0, config: ConfigFile = None, socket: Socket = None
) -> None:
    """End the trial of a version: all requests go to the present one."""
    done = call_admin(config, socket, "DELETE", _route(name), {"seconds": seconds})
    typer.echo(f"{done['version']} is rolled back")


def versions(config: ConfigFile = None, socket: Socket = None, as_json: AsJson = False) -> None:
    """List the versions on trial: their shares, errors, SLOs, and the answers of copies."""
    found = call_admin(config, socket, "GET", "/admin/versions")
    if as_json:
        print_json(found)
        return
    rows = [(row, row[part]) for row in found["deployments"] for part in ("stable", "version")]
    if rows:
        table = Table(
            whole("model", [escape(row["model"]) for row, _ in rows]),
            *("version", "state", "share", "requests", "errors", "met SLOs"),
            box=None,
            pad_edge=False,
        )
        for row, one in rows:
            table.add_row(
                escape(row["model"]),
                escape(one["name"]),
                one["state"],
                f"{one['share']:.4g}",
                str(one["requests"]),
                str(one["errors"]),
                f"{one['good']} of {one['judged']}",
            )
        console().print(table)
    for row in found["deployments"]:
        if (copies := row["shadow"])["share"]:
            typer.echo(
                f"{row['model']}: of {copies['compared']} copies {copies['equal']} were answered"
                f" alike; {copies['sampled']} drawn at random, {copies['failed']} failed,"
                f" {copies['dropped']} not sent"
            )
    for model, why in found["rolled_back"].items():
        typer.echo(f"{model}: rolled back by its rule: {why}")
    for model, why in found["not_restored"].items():
        typer.echo(f"{model}: its version is not served: {why}; gatewayd model rollback ends it")
    if not rows:
        typer.echo("no version is on trial")


def _route(name: str) -> str:
    return f"/admin/versions/{quote(name, safe='')}"
