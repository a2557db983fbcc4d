"""Quantizes a model layer by layer, and writes each down before it goes on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import torch

from gatewayd_engine.model.loading.checkpoint import Checkpoint
from gatewayd_engine.model.loading.safetensors_headers import LoadError
from gatewayd_engine.model.spec import SpecError, read_spec
from gatewayd_engine.offline.quantize.atomic_files import WriteError
from gatewayd_engine.offline.quantize.calibration_layers import fit
from gatewayd_engine.offline.quantize.checkpoint import assemble, layer_names
from gatewayd_engine.offline.quantize.input_groups import places
from gatewayd_engine.offline.quantize.job import (
    Began,
    Calibrating,
    CheckpointWritten,
    Event,
    Fitted,
    LayersKept,
    QuantizeAdvanced,
    QuantizeFailed,
    QuantizeJob,
    Reading,
)
from gatewayd_engine.offline.quantize.layers import Layers
from gatewayd_engine.offline.quantize.progress import QuantizeProgress, check_out
from gatewayd_engine.offline.quantize.quantizer import CheckpointQuantizer
from gatewayd_engine.offline.quantize.source_digest import origin_of
from gatewayd_engine.process.config import EngineConfigError
from gatewayd_hooks.host.errors import PluginError
from gatewayd_hooks.host.loading import PluginHost
from gatewayd_hooks.strategy import Kind

Tell = Callable[[Event], None]

_SHORTEST = 2


def quantize(job: QuantizeJob, host: PluginHost, tell: Tell) -> None:
    """Do a job, and tell what comes of it; what cannot be is told in a sentence."""
    try:
        _quantize(job, host, tell)
    except (EngineConfigError, LoadError, SpecError, PluginError, WriteError) as error:
        tell(QuantizeFailed(" ".join(str(error).split())))


@torch.inference_mode()
def _quantize(job: QuantizeJob, host: PluginHost, tell: Tell) -> None:
    """See ``quantize``.

    Raises:
        ConfigError: the job asks for what cannot be.
        SpecError, LoadError: the model cannot be read, or not quantized.
        PluginError: the quantizer cannot be loaded.
        WriteError: there is no room.
    """
    if job.resume and job.force:
        raise EngineConfigError("--resume goes on and --force begins anew: give one of them")
    folder, out = Path(job.model), Path(job.out).absolute()
    # Said at once, and not when all of the model has been looked at.
    check_out(out, replaces=job.force or job.resume)
    samples = [torch.tensor(ids) for ids in job.samples if len(ids) >= _SHORTEST]
    longest = max(map(len, samples), default=None)
    spec = read_spec(folder, longest)
    if spec.quantization is not None:
        raise EngineConfigError(f"{spec.quantization.where}: the weights are quantized already")
    for ids in samples:
        if int(ids.max()) >= spec.vocab_size:
            raise EngineConfigError(
                f"a text has token {int(ids.max())}, but the vocabulary is of {spec.vocab_size}"
            )
    with ExitStack() as opened:
        source = opened.enter_context(closing(Checkpoint.open(folder, spec)))
        writer = opened.enter_context(
            closing(CheckpointQuantizer(job.quantizer, host, source, job.skip))
        )
        if writer.calibrates is None:
            samples = []
        owner = host.owner(Kind.QUANTIZER, writer.name)
        origin = origin_of(source, writer, samples, job.skip, owner, lambda p: tell(Reading(p)))
        work = QuantizeProgress(out, origin, resume=job.resume, force=job.force)
        opened.callback(work.close)
        tell(Began(work.done, spec.num_layers))
        if samples:
            tell(Calibrating(sum(map(len, samples))))
        try:
            _fit_layers(source, writer, work, samples, tell)
            told = work.told()
            total = assemble(source, writer, work, _report(job, writer, origin, told))
            work.finish()
        except WriteError as error:
            raise WriteError(
                f"{error}; what is done stays in {work.folder}, and --resume goes on with it"
            ) from error
        source_bytes = sum((folder / name).stat().st_size for name in source.files)
    tell(CheckpointWritten(told, total, source_bytes))


def _fit_layers(
    source: Checkpoint,
    writer: CheckpointQuantizer,
    work: QuantizeProgress,
    samples: list[torch.Tensor],
    tell: Tell,
) -> None:
    """Fit all layers that are not done.

    Raises:
        LoadError: a matrix cannot be quantized.
        WriteError: there is no room.
    """
    spec, layers = source.spec, Layers(source)
    stream = work.stream([len(ids) for ids in samples]) if samples else []
    if stream is None:
        stream = [layers.embedded(ids) for ids in samples]
    packed = set(writer.packed)
    for index in range(work.done, spec.num_layers):

        def advance(part: float, done: int = index) -> None:
            tell(QuantizeAdvanced(done + part))

        found = list(places(spec, source.shapes, index, packed))
        fitted = fit(layers, writer, index, found, stream, advance)
        stream = fitted.stream
        tensors = _stored(source, writer, index, fitted.tensors)
        work.keep(index, tensors, fitted.told, stream)
        tell(LayersKept(index, fitted.told))


def _stored(
    source: Checkpoint, writer: CheckpointQuantizer, index: int, made: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """The tensors of a layer: those that were made, and the others as they are."""
    packed = {f"{name}.weight" for name in writer.packed}
    kept = [name for name in layer_names(source, index) if name not in made.keys() | packed]
    return {**made, **{name: source.tensor(name) for name in kept}}


def _report(
    job: QuantizeJob, writer: CheckpointQuantizer, origin: Mapping[str, str], told: list[Fitted]
) -> dict[str, Any]:
    """What is told beside the weights; the same for the same work."""
    samples = job.samples if writer.calibrates is not None else []
    return {
        "model": Path(job.model).resolve().name,
        "quantizer": writer.name,
        "settings": writer.settings,
        "texts": {"sequences": len(samples), "tokens": sum(map(len, samples))},
        "digests": dict(origin),
        "matrices": {one.matrix: {"lost": one.lost, "nearest": one.nearest} for one in told},
        # By tokens that they saw: experts to which hardly any of the texts came.
        "saw_too_few": {one.matrix: one.few for one in told if one.few is not None},
    }
