"""``gatewayd bench``, for a running server, and its subcommands, which start their own target."""

from __future__ import annotations

import typer

from gatewayd.cli.bench.cli import bench
from gatewayd.cli.bench.offline.cli import offline
from gatewayd.cli.bench.served.cli import serve

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
app.callback(invoke_without_command=True)(bench)
app.command("offline")(offline)
app.command("serve")(serve)
