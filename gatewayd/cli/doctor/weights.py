"""Checks of the weight files: complete and of a supported format. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence, Sized
from pathlib import Path
from typing import TYPE_CHECKING

from gatewayd.cli.doctor.finding import Finding
from gatewayd.config.strategies import AUTO, NATIVE
from gatewayd.config.tables import Config
from gatewayd.engines.replicas.launch import model_folder
from gatewayd.engines.replicas.weight_bytes import files_of_weights, method_of
from gatewayd_engine.model.gguf.files import has_gguf
from gatewayd_engine.model.loading.safetensors_headers import read_header
from gatewayd_engine.model.loading.shards import weight_files
from gatewayd_engine.model.spec import ModelSpec, UnsupportedModel, read_spec
from gatewayd_hooks.host.catalog import Catalog
from gatewayd_hooks.strategy import Kind

if TYPE_CHECKING:
    pass

_GIB = 1 << 30


def weights(config: Config) -> Finding:
    """Check the headers of the weight files, and that their quantizer is installed."""
    if config.model.dummy_weights:
        return Finding("weights", "ok", "random, because of [model] dummy_weights")
    try:
        folder = model_folder(config)
        spec = _spec(config, folder)
        # GGUF headers were already checked by read_spec.
        is_gguf = has_gguf(folder)
        paths = files_of_weights(folder) if is_gguf else weight_files(folder)
        found = [] if is_gguf else [read_header(path) for path in paths]
    except (ValueError, OSError) as error:
        return Finding("weights", "failure", str(error))
    if spec is None:
        return Finding("weights", "ok", _text(paths, found))
    if problem := _problem(config, spec):
        return Finding("weights", "failure", problem)
    return Finding("weights", "ok", f"{_text(paths, found)}{_how(spec, is_gguf=is_gguf)}")


def _text(paths: Sequence[Path], headers: Sequence[Sized]) -> str:
    size = sum(path.stat().st_size for path in paths)
    count = f", {sum(map(len, headers))} tensors" if headers else ""
    return f"{len(paths)} file(s), {size / _GIB:.1f} GiB{count}"


def _spec(config: Config, folder: Path) -> ModelSpec | None:
    """Return the spec of the engine's own decoder; None if another backend may serve the model.

    Raises:
        SpecError: the checkpoint cannot be served.
    """
    if config.model.backend not in (NATIVE, AUTO):
        return None
    try:
        return read_spec(folder, config.model.max_model_len)
    except UnsupportedModel:
        if config.model.backend == NATIVE:
            raise
        return None


def _problem(config: Config, spec: ModelSpec) -> str | None:
    """Return why the quantization is not supported, as an engine would report at startup."""
    announced = spec.quantization
    if announced is None:
        return None
    method = str(announced.values.get("quant_method"))
    said, chosen = f"{announced.where}.quant_method is {method[:100]!r}", config.quantizer.strategy
    name = method_of(announced)
    installed = Catalog.installed().names(Kind.QUANTIZER)
    if name not in installed:
        return f"{said}, and no installed quantizer has that name; there are {', '.join(installed)}"
    if chosen not in (AUTO, name):
        return f"{said}, but [quantizer] strategy is {chosen}; set it to {AUTO}"
    return None


def _how(spec: ModelSpec, *, is_gguf: bool) -> str:
    if spec.quantization is None:
        return ""
    values = spec.quantization.values
    text = f", quantized: {values.get('quant_method')}"
    if not is_gguf:
        return text
    # A file of floats lists no types.
    types = ", ".join(sorted({*values["types"].values()})) or "floats"
    return f"{text} ({types})"
