"""``gatewayd explain``: break down the latency of a request."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import quote

import msgspec
import typer
from rich.table import Table

from gatewayd.cli.common import AsJson, ConfigFile, console, print_json, whole
from gatewayd.cli.operate.swap import Socket, call_admin
from gatewayd.wire.cause_labels import label
from gatewayd.wire.requests import RoutePart
from gatewayd.wire.route_lines import route_lines

_LABEL = 10
_WIDTH = 40
"""Width in characters of the bar for the total latency."""


def explain(
    request: Annotated[
        str | None,
        typer.Argument(
            metavar="ID",
            help="Request id (the x-request-id response header). "
            "Default: list the latest requests.",
        ),
    ] = None,
    slowest: Annotated[
        bool, typer.Option("--slowest", help="List the slowest requests instead of the latest.")
    ] = False,
    limit: Annotated[int, typer.Option("--limit", help="Number of requests to list.", min=1)] = 20,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            metavar="NAME",
            help="List only the requests of this model. Default: the requests of all models.",
        ),
    ] = None,
    config: ConfigFile = None,
    socket: Socket = None,
    as_json: AsJson = False,
) -> None:
    """Break down the latency of a request that a running daemon has served."""
    if request is None:
        order = "slowest" if slowest else "newest"
        found = call_admin(
            config, socket, "GET", f"/admin/requests?order={order}&limit={limit}", model=model
        )
        if as_json:
            print_json(found)
        else:
            _list(found["requests"])
        return
    # Clients choose ids, which may contain slashes.
    found = call_admin(config, socket, "GET", f"/admin/requests/{quote(request, safe='')}")
    if as_json:
        print_json(found)
        return
    typer.echo("\n".join(waterfall(found)))


def _list(rows: list[dict[str, Any]]) -> None:
    table = Table(
        whole("id", [row["id"] for row in rows]),
        "endpoint",
        "model",
        "class",
        "outcome",
        "ms",
        "ttft ms",
        "main cause",
        box=None,
        pad_edge=False,
    )
    for row in rows:
        ttft = "" if row["ttft_ms"] is None else f"{row['ttft_ms']:.1f}"
        outcome = " ".join(filter(None, (row["outcome"], row["error"])))
        ends = (row["id"], row["endpoint"], row.get("model", ""), row["priority"], outcome)
        table.add_row(*ends, f"{row['ms']:.1f}", ttft, due(row))
    console().print(table)


def waterfall(found: dict[str, Any]) -> list[str]:
    """Format a request as lines of text: totals, a bar for each part, the main cause, the route."""
    total = found["ms"]
    # Without a model if it was refused before that, or comes from an earlier version.
    head = [found["id"], found["endpoint"], found.get("model"), found["priority"], found["outcome"]]
    lines = [
        "  ".join(filter(None, head)),
        f"{found['prompt_tokens']} prompt tokens ({found['cached_tokens']} cached), "
        f"{found['completion_tokens']} generated, {found['preemptions']} preemptions, "
        f"{found['engine_ms']:.1f} ms of an engine",
        "",
    ]
    width = max([_LABEL, *(len(due(part)) for part in found["parts"])])
    for part in found["parts"]:
        begin = part["begin_ms"]
        bar = _bar(begin, part["ms"], total)
        at = "" if begin is None else f"{begin:.1f}"
        lines.append(f"{due(part):<{width}} {at:>10} {part['ms']:>10.1f} ms  |{bar}|")
    lines += [f"{'total':<{width}} {'':>10} {total:>10.1f} ms", "", found["verdict"]]
    if (route := found.get("route")) is not None:
        lines += ["", *route_lines(msgspec.convert(route, RoutePart))]
    return lines


def due(found: dict[str, Any]) -> str:
    """Return the label of a latency cause and the strategy responsible for it."""
    return label(found["cause"], found["strategy"])


def _bar(begin: float | None, ms: float, total: float) -> str:
    """Draw a part at its position in the total; dots if it is spread over other parts."""
    if total <= 0:
        return " " * _WIDTH
    # Each part is visible, and within the bar even where it is rounded up.
    length = min(_WIDTH, max(1, round(_WIDTH * ms / total)))
    if begin is None:
        return ("·" * length).ljust(_WIDTH)
    start = min(_WIDTH - length, round(_WIDTH * begin / total))
    return (" " * start + "█" * length).ljust(_WIDTH)
