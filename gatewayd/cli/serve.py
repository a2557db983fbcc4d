"""``gatewayd serve``: run the daemon in the foreground."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
import typer.core

from gatewayd.cli.common import ConfigFile, fail, load_config, named_folder
from gatewayd.cli.lazy import gc_paused
from gatewayd.cli.vllm.arguments import ServeArguments, UsageProblem, read
from gatewayd.config.tables import Config
from gatewayd.hub.errors import NO_REFERENCE, HubError
from gatewayd.hub.reference import PREFIX, is_reference, parse_reference

_ARGUMENTS = "gatewayd.cli.serve"
"""Key of the context's ``meta`` with what vLLM's options set."""

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


class ServeDtype(StrEnum):
    """Dtype of weights and activations."""

    AUTO = "auto"
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"


class ServeCommand(typer.core.TyperCommand):
    """Command that also takes vLLM's options, see ``cli.vllm.table``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401 - click's context
        """Take vLLM's options out, and let typer parse the others."""
        own = {
            name: not getattr(each, "is_flag", True)
            for each in self.get_params(ctx)
            for name in each.opts
            if name.startswith("-")
        }
        try:
            found = read(args, own)
        except UsageProblem as problem:
            ctx.fail(str(problem))
        ctx.meta[_ARGUMENTS] = found
        return super().parse_args(ctx, found.rest)


@app.command("serve", cls=ServeCommand)
def serve(
    context: typer.Context,
    served: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL", help="The same as --model; ORG/NAME alone is a model of the Hub."
        ),
    ] = None,
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

    Options of vLLM are accepted by their names: docs/vllm-options.md has the table.
    """
    if served is not None and model is not None:
        context.fail(f"the argument {served} and --model {model} both name a model: leave one out")
    arguments: ServeArguments = context.meta[_ARGUMENTS]
    try:
        path = model_path(served or model, arguments.revision)
    except HubError as error:
        context.fail(str(error))
    given = {
        "model.path": path,
        "server.host": host,
        "server.port": port,
        "server.api_key": api_key,
        "model.dtype": dtype,
        "engine.device": device,
    }
    flags = {key: value for key, value in given.items() if value is not None}
    flags |= arguments.settings.values
    options = arguments.settings.names

    def reload() -> Config:
        from gatewayd.config.load import load

        # Not ``load_config``, which would end the daemon if the file is invalid.
        return load(config, flags, options=options).config

    loaded = load_config(config, flags, needs_secrets=True, options=options).config

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


def model_path(given: str | None, revision: str | None = None) -> str | None:
    """Return the configured path of a model on the command line.

    Args:
        given: a folder, a file, an embedded model, or ``ORG/NAME`` of the Hub with or without
            ``hf:``; None for the embedded model.
        revision: branch, tag or commit of a model of the Hub.

    Raises:
        HubError: there is a revision, but the model is not one of the Hub, or names another one.
    """
    if given is None and revision is None:
        return None
    found = named_folder(given or "")
    if not is_reference(found) and not Path(found).expanduser().exists():
        with suppress(HubError):
            found = f"{PREFIX}{parse_reference(found)}"
    if revision is None:
        return found
    if not is_reference(found) or parse_reference(found).revision not in ("main", revision):
        raise HubError(
            f"--revision {revision}: {given or 'the embedded model'} is no model of the Hub"
            " without a revision; write ORG/NAME",
            NO_REFERENCE,
        )
    reference = parse_reference(found)
    return f"{PREFIX}{replace(reference, revision=revision)}"
