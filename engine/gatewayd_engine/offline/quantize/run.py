"""Quantization of a model layer by layer; each layer is written before the next starts."""

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
from gatewayd_engine.offline.quantize.input_groups import input_groups
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
from gatewayd_engine.offline.quantize.layers import Layers
from gatewayd_engine.offline.quantize.progress import QuantizeProgress, check_out
from gatewayd_engine.offline.quantize.quantizer import CheckpointQuantizer
from gatewayd_engine.offline.quantize.source_digest import origin_of
from gatewayd_engine.process.config import EngineConfigError
from gatewayd_hooks.host.errors import PluginError
from gatewayd_hooks.host.loading import PluginHost
from gatewayd_hooks.strategy import Kind

Emit = Callable[[Event], None]

_SHORTEST = 2


def quantize(job: QuantizeJob, host: PluginHost, emit: Emit) -> None:
    """Run a job and emit its events; errors are emitted as ``QuantizeFailed``."""
    try:
        _quantize(job, host, emit)
    except (EngineConfigError, LoadError, SpecError, PluginError, WriteError) as error:
        emit(QuantizeFailed(" ".join(str(error).split())))


@torch.inference_mode()
def _quantize(job: QuantizeJob, host: PluginHost, emit: Emit) -> None:
    """See ``quantize``.

    Raises:
        EngineConfigError: the job is invalid.
        SpecError, LoadError: the model cannot be read or quantized.
        PluginError: the quantizer cannot be loaded.
        WriteError: a file cannot be written, such as on a full disk.
    """
    if job.resume and job.force:
        raise EngineConfigError("--resume continues and --force starts over: give one of them")
    folder, out = Path(job.model), Path(job.out).absolute()
    # Fail early, before the whole model is hashed.
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
            # Before the digests, so that texts that are not used do not count.
            samples = []
        owner = host.owner(Kind.QUANTIZER, writer.name)
        origin = origin_of(
            source, writer, samples, job.skip, owner, lambda p: emit(HashingProgress(p))
        )
        work = QuantizeProgress(out, origin, resume=job.resume, force=job.force)
        opened.callback(work.close)
        emit(QuantizeStarted(work.done, spec.num_layers))
        if samples:
            emit(CalibrationStarted(sum(map(len, samples))))
        try:
            _fit_layers(source, writer, work, samples, emit)
            fits = work.fits()
            total = assemble(source, writer, work, _report(job, writer, origin, fits))
            work.finish()
        except WriteError as error:
            raise WriteError(
                f"{error}; what is done stays in {work.folder}, and --resume continues it"
            ) from error
        source_bytes = sum((folder / name).stat().st_size for name in source.files)
    emit(CheckpointWritten(fits, total, source_bytes))


def _fit_layers(
    source: Checkpoint,
    writer: CheckpointQuantizer,
    work: QuantizeProgress,
    samples: list[torch.Tensor],
    emit: Emit,
) -> None:
    """Quantize and write all layers that are not done.

    Raises:
        LoadError: a matrix cannot be quantized.
        WriteError: a file cannot be written, such as on a full disk.
    """
    spec, layers = source.spec, Layers(source)
    stream = work.stream([len(ids) for ids in samples]) if samples else []
    # No layer is done: the stream starts with the embeddings.
    if stream is None:
        stream = [layers.embedded(ids) for ids in samples]
    packed = set(writer.packed)
    for index in range(work.done, spec.num_layers):

        def advance(part: float, done: int = index) -> None:
            emit(QuantizeAdvanced(done + part))

        found = list(input_groups(spec, source.shapes, index, packed))
        fitted = fit(layers, writer, index, found, stream, advance)
        stream = fitted.stream
        tensors = _stored(source, writer, index, fitted.tensors)
        work.save_layer(index, tensors, fitted.fits, stream)
        emit(LayerWritten(index, fitted.fits))


def _stored(
    source: Checkpoint, writer: CheckpointQuantizer, index: int, made: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Return a layer's tensors to store: quantized ones, and the others unchanged."""
    # Float weights of quantized matrices are left out, whatever names the format stores them under.
    packed = {f"{name}.weight" for name in writer.packed}
    kept = [name for name in layer_names(source, index) if name not in made.keys() | packed]
    return {**made, **{name: source.tensor(name) for name in kept}}


def _report(
    job: QuantizeJob, writer: CheckpointQuantizer, origin: Mapping[str, str], fits: list[Fitted]
) -> dict[str, Any]:
    """Return the report to store with the weights; deterministic for the same job."""
    samples = job.samples if writer.calibrates is not None else []
    return {
        "model": Path(job.model).resolve().name,
        "quantizer": writer.name,
        "settings": writer.settings,
        "texts": {"sequences": len(samples), "tokens": sum(map(len, samples))},
        "digests": dict(origin),
        "matrices": {one.matrix: {"lost": one.lost, "nearest": one.nearest} for one in fits},
        # Experts to which hardly any calibration tokens were routed, with their number.
        "saw_too_few": {one.matrix: one.few for one in fits if one.few is not None},
    }
