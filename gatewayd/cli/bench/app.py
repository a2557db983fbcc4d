"""``gatewayd bench``: a server as it is; its subcommands: an engine or a daemon of their own."""

from __future__ import annotations

import typer

from gatewayd.cli.bench.cli import bench
from gatewayd.cli.bench.offline.cli import offline
from gatewayd.cli.bench.served.cli import serve

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
app.callback(invoke_without_command=True)(bench)
app.command("offline")(offline)
app.command("serve")(serve)
