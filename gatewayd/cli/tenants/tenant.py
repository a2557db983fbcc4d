"""``gatewayd tenant``: manage tenants, their rate limits, budgets and weights."""

from __future__ import annotations

import re
from typing import Annotated, Any

import typer
from rich.table import Table

from gatewayd.cli.common import AsJson, ConfigFile, console, fail, print_json, whole
from gatewayd.cli.operate.swap import Socket
from gatewayd.cli.shared_options import with_option_groups
from gatewayd.cli.store_access import run_action
from gatewayd.wire.tenants import PAGES

app = typer.Typer(
    no_args_is_help=True, help="Manage tenants, their rate limits, budgets and weights."
)

Name = Annotated[str, typer.Argument(metavar="TENANT", help="Name of the tenant.")]
_NONE = ("none", "unlimited")
_MICROS = 1_000_000
_SHARE = "PAGES|SHARE%"
_PAGES = (PAGES, "neither a number of pages, nor a share such as 12.5%, nor none")
_FORMS = {
    "kv_floor": _PAGES,
    "kv_ceiling": _PAGES,
    "budget_period": ("^(day|month)$", "none of day, month and none"),
    "service_class": (
        "^(realtime|standard|batch)$",
        "none of realtime, standard, batch and none",
    ),
}
"""Pattern of each text option, and the error message for values that do not match."""


def _option(flag: str, text: str, value: str = "N") -> Any:  # noqa: ANN401 - typer's
    return typer.Option(flag, metavar=f"{value}|none", help=text)


Requests = Annotated[
    str | None, _option("--requests-per-minute", "Rate limit: requests per minute.")
]
Tokens = Annotated[
    str | None,
    _option("--tokens-per-minute", "Rate limit: prompt and completion tokens per minute."),
]
Concurrency = Annotated[
    str | None, _option("--concurrency", "Maximum number of concurrent requests.")
]
BudgetTokens = Annotated[str | None, _option("--budget-tokens", "Token budget per budget period.")]
BudgetMoney = Annotated[
    str | None,
    _option("--budget-money", "Money budget per budget period, such as 12.50; needs prices."),
]
BudgetPeriod = Annotated[
    str | None,
    _option("--budget-period", "Budget period in UTC; none: the budget never resets.", "day|month"),
]
Floor = Annotated[
    str | None,
    _option(
        "--kv-floor", "Guaranteed share of the KV cache, which other tenants cannot evict.", _SHARE
    ),
]
Ceiling = Annotated[
    str | None,
    _option("--kv-ceiling", "Maximum share of the KV cache that its requests may hold.", _SHARE),
]
Class = Annotated[
    str | None,
    _option(
        "--service-class",
        "Highest priority class that it may request; none: standard.",
        "realtime|standard|batch",
    ),
]
Retention = Annotated[
    str | None,
    _option("--retention-priority", "Maximum kv_retention.priority of its requests; none: 50."),
]
RetentionSeconds = Annotated[
    str | None,
    _option(
        "--retention-seconds", "Maximum seconds of a kv_retention.priority above 50; none: one day."
    ),
]
StoreBytes = Annotated[
    str | None,
    _option(
        "--store-bytes",
        "Store quota, such as 10GiB; none: its fair share.",
        "SIZE",
    ),
]
Weight = Annotated[
    float | None,
    typer.Option("--weight", help="Fair-share weight relative to other tenants. Default: 1."),
]


def terms_of(
    requests_per_minute: Requests = None,
    tokens_per_minute: Tokens = None,
    concurrency: Concurrency = None,
    budget_tokens: BudgetTokens = None,
    budget_money: BudgetMoney = None,
    budget_period: BudgetPeriod = None,
    weight: Weight = None,
    kv_floor: Floor = None,
    kv_ceiling: Ceiling = None,
    service_class: Class = None,
    retention_priority: Retention = None,
    retention_seconds: RetentionSeconds = None,
    store_bytes: StoreBytes = None,
) -> dict[str, Any]:
    """Parse the options of a tenant's terms, by field name, or exit with an error."""
    counts = {
        "requests_per_minute": requests_per_minute,
        "tokens_per_minute": tokens_per_minute,
        "concurrency": concurrency,
        "most_tokens": budget_tokens,
        "retention_priority": retention_priority,
        "retention_seconds": retention_seconds,
    }
    texts = {
        "kv_floor": kv_floor,
        "kv_ceiling": kv_ceiling,
        "budget_period": budget_period,
        "service_class": service_class,
    }
    # An absent field leaves a term as it is; None removes the limit.
    terms: dict[str, Any] = {}
    for name, text in counts.items():
        if text in _NONE:
            terms[name] = None
        elif text is not None:
            # ``isdigit`` alone accepts characters that int() refuses, such as superscripts.
            if not (text.isascii() and text.isdigit()):
                fail(f"{text} is neither a whole number nor none", 2)
            terms[name] = int(text)
    for name, text in texts.items():
        if text is None:
            continue
        if text not in _NONE and not re.match(_FORMS[name][0], text):
            fail(f"{text} is {_FORMS[name][1]}", 2)
        terms[name] = None if text in _NONE else text
    if budget_money is not None:
        is_none = budget_money in _NONE
        terms["most_micros"] = None if is_none else micros_of(budget_money, "--budget-money")
    if weight is not None:
        terms["weight"] = weight
    return terms | _size(store_bytes)


@app.command()
@with_option_groups(terms=terms_of)
def create(
    tenant: Name, terms: dict[str, Any], config: ConfigFile = None, socket: Socket = None
) -> None:
    """Create a tenant; then create an API key for it with `gatewayd key create`."""
    run_action(config, socket, "POST", "/admin/tenants", {"tenant": tenant, "terms": terms})
    typer.echo(f"tenant {tenant} is created")


@app.command("set")
@with_option_groups(terms=terms_of)
def set_(
    tenant: Name, terms: dict[str, Any], config: ConfigFile = None, socket: Socket = None
) -> None:
    """Change a tenant's limits, from now on; none removes a limit."""
    if not terms:
        fail("nothing to change: give at least one option", 2)
    run_action(config, socket, "PATCH", f"/admin/tenants/{tenant}", terms)
    typer.echo(f"tenant {tenant} is changed")


@app.command()
def remove(tenant: Name, config: ConfigFile = None, socket: Socket = None) -> None:
    """Remove a tenant with its keys, files, batches and responses; usage records are kept."""
    run_action(config, socket, "DELETE", f"/admin/tenants/{tenant}")
    typer.echo(f"tenant {tenant} is removed")


@app.command("list")
def list_(config: ConfigFile = None, socket: Socket = None, as_json: AsJson = False) -> None:
    """List all tenants with their limits and usage."""
    found = run_action(config, socket, "GET", "/admin/tenants")
    if as_json:
        print_json(found)
        return
    table = Table(
        whole("tenant", [row["tenant"] for row in found]),
        *("weight", "requests/min", "tokens/min", "at once", "kv floor", "ceiling"),
        *("tokens used", "of", "money used", "of", "in a"),
        *("class", "retention", "kept", "of"),
        box=None,
        pad_edge=False,
    )
    for row in found:
        table.add_row(
            row["tenant"],
            f"{row['weight']:g}",
            *map(_shown, (row["requests_per_minute"], row["tokens_per_minute"])),
            *map(_shown, (row["concurrency"], row["kv_floor"], row["kv_ceiling"])),
            str(row["used_tokens"]),
            _shown(row["most_tokens"]),
            money(row["used_micros"]),
            "-" if row["most_micros"] is None else money(row["most_micros"]),
            _shown(row["budget_period"]),
            row["service_class"] or "standard",
            _retention(row),
            size(row["kept_bytes"]),
            "-" if row["store_bytes"] is None else size(row["store_bytes"]),
        )
    console().print(table)


def money(micros: int) -> str:
    """Format millionths as a decimal amount, without floats: ``1_500_000`` is ``1.50``."""
    whole_, rest = divmod(micros, _MICROS)
    # Two decimals at least, more only where they are needed.
    return f"{whole_}.{rest:06d}".rstrip("0").ljust(len(str(whole_)) + 3, "0")


def micros_of(text: str, option: str) -> int:
    """Parse a decimal amount to millionths, or exit with an error."""
    units, _, rest = text.partition(".")
    if not (units.isdigit() and text.isascii() and len(rest) <= 6 and (rest or "0").isdigit()):
        fail(f"{option} {text} is no amount such as 12.50, with at most 6 decimals", 2)
    return int(units) * _MICROS + int(rest.ljust(6, "0"))


def size(num_bytes: int) -> str:
    """Format bytes in readable units: ``1.5GiB``."""
    from pydantic import ByteSize

    return ByteSize(num_bytes).human_readable()


def _size(text: str | None) -> dict[str, int | None]:
    from pydantic import ByteSize, TypeAdapter, ValidationError

    if text is None or text in _NONE:
        return {} if text is None else {"store_bytes": None}
    try:
        return {"store_bytes": int(TypeAdapter(ByteSize).validate_python(text))}
    except ValidationError:
        fail(f"--store-bytes {text} is neither a size such as 10GiB nor none", 2)


def _retention(row: dict[str, Any]) -> str:
    """Format the maximum cache retention priority and its duration; ``-`` for the default."""
    priority, seconds = row["retention_priority"], row["retention_seconds"]
    if priority is None:
        return "-"
    return f"{priority}" if seconds is None else f"{priority} for {seconds} s"


def _shown(value: int | str | None) -> str:
    return "-" if value is None else str(value)
