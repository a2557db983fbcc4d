"""``gatewayd install``: install or uninstall the systemd service."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gatewayd.cli.common import fail
from gatewayd.daemon.systemd.install import Installer, InstallError
from gatewayd.daemon.systemd.units import (
    UNITS,
    UnitsMissing,
    every_path,
    own_program,
    unit_files,
    why_unusable,
)

_GPU = Path("/dev/nvidiactl")
_NEXT = """
Next:
  gatewayd init --system                        a configuration and a key
  systemctl enable --now gatewayd.socket        holds the port across restarts; leave it out to have
                                                the daemon open [server] host and port itself
  systemctl enable --now gatewayd.service
  systemctl status gatewayd; journalctl -u gatewayd -o cat"""
_KEPT = "Kept: /etc/gatewayd, /var/lib/gatewayd, /var/cache/gatewayd and the user gatewayd."


def install(
    root: Annotated[
        Path,
        typer.Option(
            metavar="DIR", help="Install below this root folder, for instance of an image."
        ),
    ] = Path("/"),
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be done without doing it.")
    ] = False,
    uninstall: Annotated[
        bool, typer.Option("--uninstall", help="Stop the service and delete its units.")
    ] = False,
    gpu: Annotated[
        bool | None,
        typer.Option(
            "--gpu/--no-gpu",
            help="Give the service access to NVIDIA GPUs. Default: if this machine has one.",
        ),
    ] = None,
    program: Annotated[
        str | None,
        typer.Option(
            metavar="PATH", help="Path of the gatewayd executable to run. Default: this one."
        ),
    ] = None,
) -> None:
    """Install the systemd units, the user and the folders of the service.

    Files that were not written by this command are neither replaced nor deleted.
    """
    installer = Installer(root.absolute(), dry_run, typer.echo)
    chosen = program or own_program()
    try:
        if uninstall:
            installer.uninstall(every_path(), UNITS)
            typer.echo(_KEPT)
            return
        if why := why_unusable(chosen):
            # An image may get the program later, so there it is only a warning.
            if installer.root == Path("/") and not dry_run:
                fail(why)
            typer.secho(f"gatewayd: {why}", fg="yellow", err=True)
        installer.install(unit_files(chosen, gpu=_GPU.exists() if gpu is None else gpu))
    except (InstallError, UnitsMissing) as error:
        fail(str(error))
    typer.echo(_NEXT)
