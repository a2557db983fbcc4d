"""``gatewayd watermark``: find the mark that the daemon's answers carry."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from gatewayd.cli.common import BAD_CONFIG, AsJson, ConfigFile, fail, load_config, print_json

app = typer.Typer(no_args_is_help=True, help="Find the mark that answers carry.")

_VERDICTS = {True: "marked", False: "not marked", None: "too little text to tell"}


@app.callback()
def watermark() -> None:
    """Find the mark that answers carry."""


@app.command()
def detect(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="A UTF-8 text; - reads standard input.")
    ],
    tenant: Annotated[
        str, typer.Option(help="Whose mark; by default that of requests without a key.")
    ] = "",
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Say whether a text carries a tenant's mark; needs the configuration, and no daemon."""
    # Late: numpy and tokenizers take their time, and the option --help needs neither.
    from gatewayd.engines.replicas.launch import model_folder
    from gatewayd.plugins.loaded import load_detector
    from gatewayd.text.tokenizer import Tokenizer
    from gatewayd_hooks.host.loading import PluginError

    settings = load_config(config, needs_secrets=True).config
    try:
        detector = load_detector(settings)
    except PluginError as error:
        fail(str(error), BAD_CONFIG)
    if detector is None:
        fail("no strategy of [logits_processor] leaves a mark in answers", BAD_CONFIG)
    try:
        tokenizer = Tokenizer.from_folder(model_folder(settings))
    except (OSError, ValueError) as error:
        fail(str(error), BAD_CONFIG)
    try:
        text = (sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()).decode()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        fail(f"cannot read {file}: {reason}")
    ids = tokenizer.encode(text)
    found = detector.detect(ids, tenant)
    if as_json:
        print_json({"num_tokens": len(ids), **asdict(found)})
        return
    typer.echo(f"{_VERDICTS[found.is_marked]}: z {found.z:.2f}, by chance {found.p_value:.1e}")
    typer.echo(f"{found.num_green} of {found.num_scored} scored tokens green, {len(ids)} in all")
