"""``gatewayd quality``: measure the accuracy of quantized weights and KV caches."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from gatewayd.cli.bench.options import AsMarkdown, Set, pairs
from gatewayd.cli.bench.progress import Stages
from gatewayd.cli.child import ChildFailed, run_job
from gatewayd.cli.common import (
    AsJson,
    ConfigFile,
    console,
    fail,
    load_config,
    load_model_config,
    named_folder,
    print_json,
)
from gatewayd.cli.quality.report import Result, markdown, most_kl, notes, reasons, table, values
from gatewayd.cli.quality.texts import samples
from gatewayd.config.strategies import AUTO, NONE
from gatewayd.config.tables import Config
from gatewayd.engines.replicas.launch import checked_context_len, engine_config, model_folder
from gatewayd_engine.model import embedded
from gatewayd_engine.model.config.text_part import ANNOUNCED
from gatewayd_engine.offline.quality.job import (
    Event,
    QualityAdvanced,
    QualityFailed,
    QualityJob,
    QualityScheme,
    SchemeMeasured,
    SchemeUnusable,
)
from gatewayd_hooks.host.catalog import Catalog
from gatewayd_hooks.strategy import Kind

_STORED = "as stored"
_TOKENS, _CONTEXTS = 30_000, 8_192
"""Default number of tokens to evaluate, without and with KV compression."""
_MISUSED = 2


def quality(
    model: Annotated[
        str | None,
        typer.Argument(metavar="MODEL", help="Checkpoint folder. Default: the configured model."),
    ] = None,
    quantizer: Annotated[
        str,
        typer.Option(
            metavar="A,B", help="Weight quantizers to compare with the weights as stored."
        ),
    ] = "",
    kv_codec: Annotated[
        str,
        typer.Option(
            metavar="A,B",
            help="KV-cache codecs to measure with each quantizer, in addition to none.",
        ),
    ] = "",
    kv_compression: Annotated[
        str,
        typer.Option(
            metavar="A,B",
            help="KV compressions to measure with each quantizer, in addition to none.",
        ),
    ] = "",
    against: Annotated[
        str | None,
        typer.Option(
            metavar="FOLDER", help="Reference model to compare with. Default: MODEL itself."
        ),
    ] = None,
    text: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Evaluation text, or JSON Lines with `kind` and `text`. Default: bundled texts.",
        ),
    ] = None,
    tokens: Annotated[
        int | None,
        typer.Option(
            min=2,
            help=f"Tokens to read, of all texts. Default: {_TOKENS}, or {_CONTEXTS} with"
            " --kv-compression.",
        ),
    ] = None,
    set_: Set = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
    as_markdown: AsMarkdown = False,
    most: Annotated[
        float | None,
        typer.Option(
            "--most-kl",
            min=0,
            metavar="X",
            help="Exit with status 1 if a mean KL divergence exceeds X.",
        ),
    ] = None,
) -> None:
    """Measure the accuracy of quantization: perplexity, token agreement and KL divergence.

    The reference is the same model in float32, or that of --against. Prompts are computed in
    chunks over the KV pool, as an engine does. The bundled texts come from the corpus
    of gatewayd-nano; for other models give --text with typical prompts.

    KV compression acts on decoding: with --kv-compression the texts are long, the first three
    quarters of each are the prompt, and only the rest is scored, for all schemes. Compressions
    decode it token by token; three take a minute or two with the embedded model.

    For a quantized checkpoint without --against only perplexity is reported. If a scheme cannot be
    used, the others are measured, and the exit status is 1.
    """
    folder = None if model is None else named_folder(model)
    catalog = Catalog.installed()
    quantizers = _names("--quantizer", quantizer, catalog.names(Kind.QUANTIZER), AUTO)
    codecs = _names("--kv-codec", kv_codec, catalog.names(Kind.KV_CODEC), NONE)
    known = catalog.names(Kind.KV_COMPRESSION)
    compressions = _names("--kv-compression", kv_compression, known, NONE)
    flags = pairs(set_)
    ways = [*product(quantizers, codecs, compressions)]
    # The first is the plain scheme: as stored, without codec and compression.
    loaded = [_load(config, folder, flags, *way) for way in ways]
    schemes = [
        QualityScheme(_name(*way), engine_config(one))
        for way, one in zip(ways, loaded, strict=True)
    ]
    here = model_folder(loaded[0])
    other = str(here) if against is None else named_folder(against)
    # Without a quantizer: the reference has to have float weights.
    base = _load(config, other, flags, NONE, NONE, NONE)
    reference = None
    try:
        contexts = [checked_context_len(one, model_folder(one)) for one in (loaded[0], base)]
        if against is not None or not _is_quantized(here):
            plain = msgspec.structs.replace(engine_config(base), dtype="float32")
            reference = QualityScheme(str(model_folder(base)), plain)
        is_packed = len(compressions) > 1
        count = tokens or (_CONTEXTS if is_packed else _TOKENS)
        # The same samples must fit the contexts of both models.
        found = samples(here, text, count, min(contexts), packed=is_packed)
    except ValueError as error:
        fail(str(error))
    _warn_if_not_measured(config, folder, compressions)
    if text is None:
        _warn_if_texts_are_foreign(here, model_folder(base))
    job = QualityJob(reference, schemes, found)
    measured = _run(job, loaded[0].engine.environment)
    results = list(zip([scheme.name for scheme in schemes], measured, strict=True))
    if as_json:
        print_json({"model": str(here), "schemes": values(results)})
    elif as_markdown:
        typer.echo(markdown(results))
    else:
        console().print(table(results))
        for line in reasons(results):
            console().print(line, markup=False, soft_wrap=True)
    for line in notes(results):
        typer.echo(line, err=True)
    if reference is None:
        typer.echo(
            "the weights are already quantized: give --against with the folder of the "
            "original checkpoint",
            err=True,
        )
    if broken := reasons(results):
        fail(f"some schemes cannot be used: {broken[0]}")
    if most is not None:
        _judge(results, most, is_compared=reference is not None)


def _run(job: QualityJob, names: list[str]) -> list[Result]:
    """Run the job in a child process, with a progress bar; return the result of each scheme."""
    results: list[Result] = []
    total = len(job.samples) * len(job.schemes)
    try:
        with Stages() as stages:
            for event in run_job("gatewayd_engine.offline.quality", "measures", job, Event, names):
                if isinstance(event, QualityFailed):
                    fail(event.reason)
                elif isinstance(event, QualityAdvanced):
                    done = event.scheme * len(job.samples) + event.done
                    stages.advance("texts x schemes", done, total)
                elif isinstance(event, SchemeMeasured | SchemeUnusable):
                    results.append(event)
    except ChildFailed as error:
        fail(str(error))
    return results


def _judge(results: list[tuple[str, Result]], most: float, *, is_compared: bool) -> None:
    """Exit with status 1 unless there is a reference and no divergence exceeds ``most``."""
    if not is_compared:
        fail("--most-kl needs a reference model: give --against")
    if (found := most_kl(results)) > most:
        fail(f"--most-kl: the largest mean divergence is {found:.5f}, more than {most:g}")


def _names(option: str, given: str, known: list[str], first: str) -> list[str]:
    """Parse names separated by commas, with ``first`` before them, or exit if one is unknown."""
    names = dict.fromkeys(name.strip() for name in given.split(",") if name.strip())
    for name in names:
        if name not in (*known, first, NONE):
            fail(f"{option}: {name} is not installed; there are {', '.join(known)}", _MISUSED)
    return list(dict.fromkeys((first, *names)))


def _warn_if_not_measured(file: Path | None, folder: str | None, tried: list[str]) -> None:
    configured = load_config(file, {} if folder is None else {"model.path": folder}).config
    if (name := configured.kv_compression.strategy) not in tried:
        typer.echo(
            f"[kv_compression] {name} is not measured: it acts on decoding only; measure it"
            f" with --kv-compression {name}",
            err=True,
        )


def _warn_if_texts_are_foreign(model: Path, reference: Path) -> None:
    """Warn about the bundled texts unless one of the models is embedded, hence trained on them."""
    ours = {embedded.folder(name).resolve() for name in embedded.names()}
    if not ours & {model.resolve(), reference.resolve()}:
        typer.echo(
            "the bundled texts are chats about Python's standard library and its source "
            "files, which the embedded models were trained on; for your model give --text "
            "with typical prompts",
            err=True,
        )


def _name(quantizer: str, codec: str, compression: str) -> str:
    parts = [_STORED if quantizer == AUTO else quantizer]
    parts += [] if codec == NONE else [f"kv {codec}"]
    parts += [] if compression == NONE else [compression]
    return ", ".join(parts)


def _load(
    file: Path | None,
    folder: str | None,
    given: Mapping[str, Any],
    quantizer: str,
    codec: str,
    compression: str,
) -> Config:
    """Load the configuration with a scheme of the command line, on the CPU."""
    flags = {
        **given,
        "quantizer.strategy": quantizer,
        "kv_codec.strategy": codec,
        "kv_compression.strategy": compression,
        "engine.device": "cpu",
    }
    if folder is not None:
        flags["model.path"] = folder
    return load_model_config(file, flags)


def _is_quantized(folder: Path) -> bool:
    """Whether a checkpoint is quantized; its ``config.json`` must be readable."""
    values = json.loads((folder / "config.json").read_text("utf-8"))
    if any(values.get(name) is not None for name in ANNOUNCED):
        return True
    # As an engine selects them: GGUF files count only if there are no safetensors.
    return any(folder.glob("*.gguf")) and not any(folder.glob("*.safetensors"))
