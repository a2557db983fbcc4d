"""``gatewayd watermark``: detect the watermark of a tenant in a text."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from gatewayd.cli.common import BAD_CONFIG, AsJson, ConfigFile, fail, load_config, print_json

app = typer.Typer(no_args_is_help=True, help="Detect the watermark in a text.")

_VERDICTS = {True: "marked", False: "not marked", None: "too little text to tell"}


@app.callback()
def watermark() -> None:
    """Detect the watermark in a text."""


@app.command()
def detect(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="UTF-8 text file to check; - reads stdin.")
    ],
    tenant: Annotated[
        str,
        typer.Option(
            help="Tenant whose watermark to look for. Default: requests without an API key."
        ),
    ] = "",
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Detect a tenant's watermark in a text; needs the configuration but no running daemon."""
    # Imported late: numpy and tokenizers are slow to import, and --help needs neither.
    from gatewayd.engines.replicas.launch import model_folder
    from gatewayd.plugins.loaded import load_detector
    from gatewayd.text.tokenizer import Tokenizer
    from gatewayd_hooks.host.loading import PluginError

    # The watermark's keys are derived from a secret setting.
    settings = load_config(config, needs_secrets=True).config
    try:
        detector = load_detector(settings)
    except PluginError as error:
        fail(str(error), BAD_CONFIG)
    if detector is None:
        fail("[logits_processor] strategies has no watermark strategy", BAD_CONFIG)
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
