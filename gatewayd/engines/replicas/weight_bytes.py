"""Memory that an engine takes, estimated from the files of its model. Imports no torch."""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

from gatewayd.config.strategies import AUTO, NONE
from gatewayd.config.tables import Config
from gatewayd.engines.replicas.launch import model_folder
from gatewayd_engine.model.loading.layout import layout
from gatewayd_engine.model.loading.safetensors_headers import LoadError
from gatewayd_engine.model.spec import ModelSpec, SpecError, read_spec

if TYPE_CHECKING:
    from gatewayd_hooks.quantization import Announcement

_PROCESS_BYTES = 512 << 20
"""An engine without weights and KV cache: torch, kernels, buffers of a step."""
_CPU_KV_BYTES = 1 << 30
"""Default of ``kv_memory`` on a CPU."""


def expected_engine_bytes(config: Config, folder: Path, device: str) -> tuple[int, int]:
    """Estimate the host and device memory of all engines of a model.

    On a GPU they take the share ``gpu_memory_utilization`` of it unless ``kv_memory`` is set: then
    weights and KV cache.

    Args:
        config: of the model.
        folder: of its checkpoint.
        device: ``cpu``, or of a GPU.
    """
    engine = config.engine
    kv = _CPU_KV_BYTES if engine.kv_memory is None else int(engine.kv_memory)
    model = _expected_bytes(config, folder, device) + kv
    if device == "cpu":
        return engine.replicas * (_PROCESS_BYTES + model), 0
    return engine.replicas * 2 * _PROCESS_BYTES, engine.replicas * model


def expected_bytes(config: Config, device: str) -> int:
    """Estimate the memory of the weights without reading them.

    Floats are converted to the dtype of activations, and some quantizers dequantize to it as well.
    For other quantized weights the size of the files is used.
    """
    try:
        folder = model_folder(config)
    except ValueError:
        return 0  # reported by the check of the model
    return _expected_bytes(config, folder, device)


def _expected_bytes(config: Config, folder: Path, device: str) -> int:
    stored = sum(file.stat().st_size for file in files_of_weights(folder))
    try:
        spec = read_spec(folder, config.model.max_model_len)
    except (SpecError, LoadError, OSError):
        return stored
    quantizer = quantizer_of(config, spec)
    if quantizer is not None and not _makes_floats(config, quantizer, device):
        return stored
    is_half = config.model.dtype == "bfloat16" or (config.model.dtype == "auto" and device != "cpu")
    return sum(map(prod, layout(spec).values())) * (2 if is_half else 4)


def files_of_weights(folder: Path) -> list[Path]:
    """Return the weight files of a folder: safetensors, or GGUF if there are none."""
    return list(folder.glob("*.safetensors")) or list(folder.glob("*.gguf"))


def quantizer_of(config: Config, spec: ModelSpec) -> str | None:
    """Return the quantizer whose format the weights will have; None for floats."""
    chosen = config.quantizer.strategy
    if chosen not in (AUTO, NONE):
        return chosen
    return None if spec.quantization is None else method_of(spec.quantization)


def _makes_floats(config: Config, quantizer: str, device: str) -> bool:
    """Whether a quantizer's weights are stored as floats in memory."""
    # As the built-in quantizers do; weights of others are taken to stay as they are stored.
    if quantizer == "sparse24":
        return device == "cpu"
    if quantizer == "gguf" or (quantizer == "fp8" and device == "cpu"):
        # By default GGUF files stay quantized, and 8-bit floats become floats on a CPU.
        return not config.quantizer.settings(quantizer).get("packed", quantizer == "gguf")
    return False


def method_of(announced: Announcement) -> str:
    """Return the name of the quantizer for a checkpoint's quantization method."""
    return str(announced.values.get("quant_method")).lower().replace("-", "_")
