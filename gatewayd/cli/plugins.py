"""``gatewayd plugins``: what is installed, and what the configuration enables."""

from __future__ import annotations

from dataclasses import asdict

from rich.console import Console
from rich.table import Table

from gatewayd.cli.common import AsJson, ConfigFile, load_config, print_json
from gatewayd.plugging import report

_STYLES = {"enabled": "green", "failed": "red", "conflict": "red", "unknown": "yellow"}


def plugins(config: ConfigFile = None, as_json: AsJson = False) -> None:
    """List strategies and plugins; only those that the configuration names are imported."""
    rows = report(load_config(config).config)
    if as_json:
        print_json([asdict(row) | {"enabled": row.state == "enabled"} for row in rows])
        return
    table = Table("kind", "name", "state", "from", "", box=None, pad_edge=False)
    for row in rows:
        state = f"[{_STYLES.get(row.state, 'dim')}]{row.state}[/]"
        origin = f"{row.distribution} {row.version}"
        table.add_row(row.kind, row.name, state, origin, row.reason or row.summary)
    Console().print(table)
