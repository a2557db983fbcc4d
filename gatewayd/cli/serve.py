"""``gatewayd serve``: run the daemon in the foreground."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from gatewayd.cli.common import ConfigFile, fail, load_config
from gatewayd.cli.lazy import gc_paused
from gatewayd.config.tables import Config


class ServeDtype(StrEnum):
    """Dtype of weights and activations."""

    AUTO = "auto"
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"


def serve(
    model: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="Folder of a Hugging Face checkpoint, a GGUF file, or hf:ORG/NAME of the Hub, "
            "which is fetched if it is not on this machine. Default: the embedded model nano.",
        ),
    ] = None,
    host: Annotated[
        str | None, typer.Option(metavar="H", help="Address to listen on. Default: 127.0.0.1.")
    ] = None,
    port: Annotated[
        int | None, typer.Option(metavar="N", help="TCP port; 0 picks a free one. Default: 8000.")
    ] = None,
    config: ConfigFile = None,
    api_key: Annotated[
        str | None,
        typer.Option(
            metavar="K", help="API key that clients must send; prefer setting GATEWAYD_API_KEY."
        ),
    ] = None,
    dtype: Annotated[
        ServeDtype | None, typer.Option(help="Data type of weights and activations. Default: auto.")
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(
            metavar="D", help="Device to run on: cpu, cuda, cuda:N or auto. Default: auto."
        ),
    ] = None,
) -> None:
    """Serve a model over the OpenAI API.

    Without arguments it serves the embedded model at http://127.0.0.1:8000. SIGTERM and Ctrl-C
    drain running requests first; a second one stops at once.
    """
    given = {
        "model.path": model,
        "server.host": host,
        "server.port": port,
        "server.api_key": api_key,
        "model.dtype": dtype,
        "engine.device": device,
    }
    flags = {key: value for key, value in given.items() if value is not None}

    def reload() -> Config:
        from gatewayd.config.load import load

        # Not ``load_config``, which would end the daemon if the file is invalid.
        return load(config, flags).config

    loaded = load_config(config, flags, needs_secrets=True).config

    # Imported late, because the rest of the daemon takes half a second to import.
    with gc_paused():
        from gatewayd.daemon.options import DaemonOptions, StartError
        from gatewayd.daemon.run import run
        from gatewayd.tracing import logs

    logs.configure(loaded.log)
    try:
        status = run(loaded, DaemonOptions(reload=reload))
    except StartError as error:
        fail(str(error))
    raise typer.Exit(status)
