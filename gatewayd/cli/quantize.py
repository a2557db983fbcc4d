"""``gatewayd quantize``: write a quantized checkpoint from a float one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from gatewayd.cli.bench.progress import Stages
from gatewayd.cli.child import ChildFailed, run_job
from gatewayd.cli.common import (
    AsJson,
    ConfigFile,
    fail,
    load_model_config,
    named_folder,
    print_json,
    setting_value,
)
from gatewayd.cli.quality.texts import samples
from gatewayd.engines.replicas.launch import checked_context_len, model_folder
from gatewayd_engine.model import embedded
from gatewayd_engine.offline.quantize.job import (
    CalibrationStarted,
    CheckpointWritten,
    Event,
    Fitted,
    HashingProgress,
    LayerWritten,
    QuantizeAdvanced,
    QuantizeFailed,
    QuantizeJob,
    QuantizeStarted,
)
from gatewayd_engine.offline.quantize.texts import bundled
from gatewayd_engine.process.config import StrategyChoice

# 128 plus the number of SIGINT, as shells report it.
_INTERRUPTED = 130
_MIB = 1 << 20
_FOREIGN = (
    "calibrating on the bundled texts, which come from gatewayd-nano's corpus and may not "
    "match this model's use: give --text"
)


def quantize(
    model: Annotated[
        str | None,
        typer.Argument(metavar="MODEL", help="Checkpoint folder. Default: the configured model."),
    ] = None,
    to: Annotated[
        str,
        typer.Option("--to", metavar="NAME", help="Quantizer to use: awq, gptq, fp8 or sparse24."),
    ] = ...,  # type: ignore[assignment]
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Output folder. Default: MODEL-NAME in the current folder."
        ),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Setting of the quantizer. Repeatable."),
    ] = None,
    text: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Calibration text, or JSON Lines with `kind` and `text`. Default: bundled texts.",
        ),
    ] = None,
    tokens: Annotated[
        int,
        typer.Option(
            min=0, help="Number of calibration tokens; 0: round to nearest without calibration."
        ),
    ] = 40_000,
    skip: Annotated[
        list[str] | None,
        typer.Option(
            metavar="GLOB",
            help="Weight matrices that are not quantized. Default: [quantizer] skip.",
        ),
    ] = None,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Number of CPU threads. Default: as an engine.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Resume an interrupted run.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Start over and replace earlier output.")
    ] = False,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Quantize a checkpoint: calibrate layer by layer and write INT4, FP8 or 2:4-sparse weights.

    The output is a checkpoint to serve as any other. Until it is complete its folder is called
    DIR.part and holds the finished layers: after an interruption, continue with --resume.

    The bundled texts come from the corpus of gatewayd-nano; for other models give --text with
    typical prompts. Measure the accuracy with `gatewayd quality DIR --against MODEL`.
    """
    settings = dict(_setting(one) for one in set_ or [])
    flags = {"quantizer.strategy": to, "engine.device": "cpu"}
    if model is not None:
        flags["model.path"] = named_folder(model)
    loaded = load_model_config(config, flags)
    folder = model_folder(loaded)
    out = (out or Path(f"{folder.resolve().name}-{to}")).expanduser()
    try:
        context = checked_context_len(loaded, folder)
        found = samples(folder, text, tokens, context, bundled) if tokens else []
    except ValueError as error:
        fail(str(error))
    job = QuantizeJob(
        model=str(folder),
        out=str(out.absolute()),
        quantizer=StrategyChoice(to, {**loaded.quantizer.settings(to), **settings}),
        samples=[sample.ids for sample in found],
        skip=skip or loaded.quantizer.skip,
        threads=threads or loaded.engine.threads,
        resume=resume,
        force=force,
    )
    is_foreign = text is None and folder.resolve() not in map(embedded.folder, embedded.names())
    written = _run(job, loaded.engine.environment, is_foreign=is_foreign)
    if as_json:
        print_json({"folder": str(out), **msgspec.to_builtins(written)})
        return
    sizes = [size / _MIB for size in (written.weight_bytes, written.source_bytes)]
    typer.echo(
        f"{out}: {len(written.matrices)} matrices by {to}, {sizes[0]:,.1f} MiB instead of"
        f" {sizes[1]:,.1f}; to measure it: gatewayd quality {out} --against {model or folder}"
    )


def _run(job: QuantizeJob, names: list[str], *, is_foreign: bool) -> CheckpointWritten:
    """Run the job in a child process, with a progress bar and a line for each layer.

    Args:
        job: the quantization job.
        names: environment variables to pass in addition.
        is_foreign: whether the bundled texts are used with a model that is not embedded.
    """
    layers = 0
    try:
        with Stages() as stages:
            for event in run_job(
                "gatewayd_engine.offline.quantize", "quantizes", job, Event, names
            ):
                match event:
                    case HashingProgress(done):
                        stages.advance("reading the model", done, 1)
                    # Binds the number of layers, which the later events refer to.
                    case QuantizeStarted(done, layers):
                        if done:
                            stages.print_line(f"resuming after {done} of {layers} layers")
                    case CalibrationStarted():
                        if is_foreign:
                            stages.print_line(_FOREIGN)
                    case QuantizeAdvanced(done):
                        stages.advance("layers", done, layers)
                    case LayerWritten(layer, matrices):
                        stages.print_line(_line(layer + 1, layers, matrices))
                    case QuantizeFailed(reason):
                        fail(reason)
                    case CheckpointWritten():
                        return event
    except ChildFailed as error:
        fail(f"{error}; {_resume(job)}")
    except KeyboardInterrupt:
        fail(f"interrupted; {_resume(job)}", _INTERRUPTED)
    # A complete job has returned above.
    fail(f"the quantization process exited early; {_resume(job)}")


def _resume(job: QuantizeJob) -> str:
    return f"what is done stays in {job.out}.part, and --resume continues it"


def _line(layer: int, layers: int, matrices: list[Fitted]) -> str:
    """Format the quantization error of a layer, the mean over its matrices."""
    if not matrices:
        return f"layer {layer} of {layers}: unchanged"
    lost, nearest = (
        sum(each) / len(matrices)
        for each in zip(*((m.lost, m.nearest) for m in matrices), strict=True)
    )
    few = sum(one.few is not None for one in matrices)
    rest = f"; {few} matrices saw too few tokens and were rounded to nearest" if few else ""
    return (
        f"layer {layer} of {layers}: relative output error {lost:.2%},"
        f" {nearest:.2%} without calibration{rest}"
    )


def _setting(given: str) -> tuple[str, Any]:
    key, equals, text = given.partition("=")
    if not equals or not key:
        fail(f"--set {given} is not KEY=VALUE", 2)
    return key, setting_value(text)
