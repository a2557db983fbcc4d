"""``gatewayd model pull``, ``list`` and ``delete``: the local models of the Hub."""

from __future__ import annotations

import contextlib
import logging
import signal
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.filesize import decimal
from rich.markup import escape
from rich.table import Table

from gatewayd.cli.bench.progress import Stages
from gatewayd.cli.common import (
    FAILURE,
    AsJson,
    ConfigFile,
    console,
    fail,
    load_config,
    print_json,
    whole,
)
from gatewayd.hub.errors import HubError, of_store
from gatewayd.hub.pull_events import PullEvent, PullFailure, encode_line
from gatewayd.hub.reference import PREFIX, parse_reference
from gatewayd.hub.store import path_of, store_folder
from gatewayd.hub.store_locks import hold_served
from gatewayd.hub.stored_models import delete_stored, list_stored

_log = logging.getLogger(__name__)

HubModel = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="Model of the Hub: ORG/NAME, ORG/NAME@REVISION, or ORG/NAME:QUANTIZATION of GGUF.",
    ),
]


def pull(
    model: HubModel,
    include: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATTERN",
            help="Files to fetch, such as '*Q4_K_M*'; may be repeated. Default: safetensors, or "
            "the only GGUF model.",
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the progress as lines of JSON.")
    ] = False,
) -> None:
    """Fetch a model from the Hugging Face Hub, and verify its files.

    They are stored in huggingface's cache, where other tools find them and whose files are not
    fetched again. HF_ENDPOINT, HF_TOKEN, HF_HOME and HF_HUB_OFFLINE are honoured. Only safetensors,
    GGUF, JSON, tokenizer and Jinja files are fetched, never code.
    """
    # Like Ctrl-C: the file that is being fetched is removed.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        reference = parse_reference(model)
        from gatewayd.hub.pull_sandbox import confine_pull

        # Before libraries start threads.
        if lacking := confine_pull(reference.repo):
            _log.warning("the pull can access what its user can: %s", lacking)
        # Late: huggingface's library takes a third of a second to import.
        from gatewayd.hub import pull as pulling

        if as_json:
            pulling.pull(reference, include or (), report=_print_event)
            return
        with Stages() as stages:
            commit = pulling.pull(reference, include or (), report=_reporter(stages))
    except BrokenPipeError:
        # Whatever reads the progress has ended.
        raise typer.Exit(FAILURE) from None
    except (HubError, OSError) as error:
        failure = error if isinstance(error, HubError) else of_store(error, store_folder())
        if not as_json:
            fail(str(failure))
        typer.echo(encode_line(PullFailure(str(failure), failure.code)))
        raise typer.Exit(FAILURE) from None
    except KeyboardInterrupt:
        fail(f"the pull of {model} was interrupted; complete files are in the store")
    at = f" at {commit[:12]}" if commit else ""
    typer.echo(f"{reference}{at} is in {store_folder()}")
    try:
        path_of(reference)
    except HubError as error:  # such as two quantizations, of which one can be served
        typer.echo(str(error))
    else:
        typer.echo(f"serve it with: gatewayd serve --model {PREFIX}{reference}")


def list_models(as_json: AsJson = False) -> None:
    """List the models of the Hub that are on this machine."""
    try:
        entries = list_stored()
    except OSError as error:
        fail(str(of_store(error, store_folder())))
    if as_json:
        rows = [
            {
                "name": str(entry.reference),
                "commit": entry.commit,
                "format": entry.format,
                "size": entry.size,
                "modified": int(entry.modified),
                "problem": entry.problem,
            }
            for entry in entries
        ]
        print_json({"folder": str(store_folder()), "models": rows})
        return
    if not entries:
        typer.echo(f"no models in {store_folder()}")
        return
    table = Table(
        whole("model", [escape(str(entry.reference)) for entry in entries]),
        *("commit", "format", "size", "modified", "state"),
        box=None,
        pad_edge=False,
    )
    for entry in entries:
        table.add_row(
            escape(str(entry.reference)),
            entry.commit[:12],
            entry.format,
            decimal(entry.size),
            datetime.fromtimestamp(entry.modified, UTC).astimezone().strftime("%Y-%m-%d %H:%M"),
            escape(entry.problem or "complete"),
        )
    console().print(table)


def delete(model: HubModel, config: ConfigFile = None) -> None:
    """Delete a model of the Hub from this machine; other tools' models too.

    What a daemon is serving, or would serve by the configuration, is not deleted.
    """
    # Late: the rest needs nothing of engines.
    from gatewayd.config.catalogue import model_configs
    from gatewayd.engines.replicas.launch import model_source

    configured = load_config(config).config
    try:
        reference = parse_reference(model)
        for served in model_configs(configured):
            with contextlib.suppress(HubError):  # not there, so nothing of it can be deleted
                hold_served(model_source(served.config))  # until the end of this process
        freed = delete_stored(reference)
    except HubError as error:
        fail(str(error))
    except OSError as error:
        fail(str(of_store(error, store_folder())))
    typer.echo(f"{reference} was deleted: {decimal(freed)} are free again")


def _print_event(event: PullEvent) -> None:
    typer.echo(encode_line(event))


def _reporter(stages: Stages) -> Callable[[PullEvent], None]:
    """Return what draws the progress, and prints a line for each file that was fetched."""

    def show(event: PullEvent) -> None:
        size = decimal(event.total)
        if event.stage == "listing":
            stages.advance("listing files", 0.0, 1.0)
        elif event.stage == "fetching":
            stages.advance(f"{event.file} ({size})", event.completed, event.total or 1)
        elif event.stage == "verifying":
            stages.print_line(f"{event.file}  {size}")
            stages.advance(f"{event.file}: verifying", 1.0, 1.0)

    return show
