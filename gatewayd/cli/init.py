"""``gatewayd init``: create an initial configuration and print an example request."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from gatewayd.cli.common import fail, load_config
from gatewayd.daemon.systemd.init_config import InitError, of_system, of_user

USAGE = 2
_NAME = re.compile(r"[A-Za-z0-9_-]+")


def init(
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Configuration file to write; the API key goes to the same folder."
        ),
    ] = None,
    state: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Folder of the store: files, batches and responses."),
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="Folder of a Hugging Face checkpoint, or a GGUF file. Default: the embedded "
            "model nano.",
        ),
    ] = None,
    port: Annotated[
        int, typer.Option(metavar="N", min=1, max=65_535, help="TCP port to listen on.")
    ] = 8000,
    system: Annotated[
        bool,
        typer.Option(
            "--system", help="Set up the systemd service: /etc/gatewayd and /var/lib/gatewayd."
        ),
    ] = False,
    instance: Annotated[
        str | None, typer.Option(metavar="NAME", help="Set up the systemd service gatewayd@NAME.")
    ] = None,
) -> None:
    """Create a configuration file, an API key and the folder of the store.

    Existing files are kept. It ends by printing an example request.
    """
    if instance is not None and not _NAME.fullmatch(instance):
        fail(f"{instance!r} is no name: letters, digits, - and _", USAGE)
    system = system or instance is not None
    unit = "gatewayd" if instance is None else f"gatewayd@{instance}"
    paths = of_system(instance) if system else of_user(os.environ)
    if config is not None:
        paths = replace(paths, config=config.expanduser().absolute())
    if state is not None:
        folder = state.expanduser().absolute()
        paths = replace(paths, state=folder)
        # systemd creates the folder of the service's socket, wherever the store is.
        if not system:
            paths = replace(paths, admin=folder / "admin.sock")
    try:
        said = paths.create(model and model.expanduser(), port)
    except InitError as error:
        fail(str(error))
    if system:
        # systemd sets the owner at each start of the service; until then it would be root.
        with suppress(LookupError, PermissionError):
            shutil.chown(paths.state, "gatewayd", "gatewayd")
    for sentence in said:
        typer.echo(sentence)
    start = (
        f"systemctl start {unit}" if system else f"gatewayd serve --config {_quoted(paths.config)}"
    )
    typer.echo(f"\nStart it:\n\n  {start}\n\nAsk it:\n")
    typer.echo(_curl(paths.config, paths.key))


def _curl(config: Path, key: Path) -> str:
    from gatewayd.config.catalogue import model_configs
    from gatewayd.daemon.banner import ReadyMessage
    from gatewayd.engines.replicas import launch
    from gatewayd.text.text_model import TextModel

    # An existing configuration may have several: requests that name no model go to the first.
    loaded = model_configs(load_config(config).config)[0].config
    name, can_chat = loaded.model.served_name or "MODEL", False
    # An unreadable model is reported by `gatewayd doctor`.
    with suppress(OSError, ValueError):
        name = launch.served_name(loaded)
        can_chat = TextModel.from_folder(launch.model_folder(loaded)).template is not None
    server = loaded.server
    host = f"[{server.host}]" if ":" in server.host else server.host
    url = f"http://{host}:{server.port}"
    ready_message = ReadyMessage(name, url, can_chat, needs_key=True)
    return ready_message.curl().replace("$GATEWAYD_API_KEY", f"$(cat {_quoted(key)})")


def _quoted(path: Path) -> str:
    return shlex.quote(str(path))
