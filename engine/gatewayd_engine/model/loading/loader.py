"""Loading of a decoder from a checkpoint, or with random dummy weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from gatewayd_engine.model.assembly.decoder import assemble
from gatewayd_engine.model.assembly.linears import Quantize
from gatewayd_engine.model.decoder import Decoder
from gatewayd_engine.model.loading.checkpoint import Checkpoint
from gatewayd_engine.model.loading.kv_scales import KvScales
from gatewayd_engine.model.loading.layout import Shapes, layout
from gatewayd_engine.model.parts import LayerParts, PlainParts
from gatewayd_engine.model.spec import ModelSpec
from gatewayd_engine.model.weights import to_device
from gatewayd_hooks.quantization import Weight


def load(
    folder: Path,
    spec: ModelSpec,
    dtype: torch.dtype,
    device: str,
    progress: Callable[[float], None],
    parts: LayerParts | None = None,
) -> Decoder:
    """Load an unquantized checkpoint.

    Args:
        folder: contains ``model.safetensors``, or shards and their index.
        spec: of the same folder.
        dtype: see ``read``.
        device: see ``read``.
        progress: see ``read``.
        parts: see ``read``.

    Raises:
        LoadError: a file is missing or corrupt, or its tensors do not match the spec.
    """
    return read(Checkpoint.open(folder, spec), dtype, device, progress, parts)


def read(
    checkpoint: Checkpoint,
    dtype: torch.dtype,
    device: str,
    progress: Callable[[float], None],
    parts: LayerParts | None = None,
    quantize: Quantize | None = None,
    kv_scales: Mapping[int, KvScales] | None = None,
) -> Decoder:
    """Load a decoder from a checkpoint, reading one matrix at a time.

    Args:
        checkpoint: closed afterwards.
        dtype: of the decoder, whatever the dtype of the files.
        device: device of the weights.
        progress: called with the fraction read so far, 1.0 at the end.
        parts: factory of the decoder's operations; None for ``PlainParts``.
        quantize: quantizes weights at load time; None to keep them as stored.
        kv_scales: KV cache scales by layer, to be folded into the weights.

    Raises:
        LoadError: a tensor cannot be read, or its values are invalid.
    """
    try:
        weights = _Reader(checkpoint, dtype, device, progress)
        return assemble(checkpoint.spec, weights, parts or PlainParts(), quantize, kv_scales)
    finally:
        checkpoint.close()


def dummy(
    spec: ModelSpec,
    dtype: torch.dtype,
    device: str,
    seed: int,
    progress: Callable[[float], None] = lambda part: None,
    parts: LayerParts | None = None,
    quantize: Quantize | None = None,
) -> Decoder:
    """Build a decoder with random weights, deterministic for a seed and a device."""
    weights = _Random(layout(spec), dtype, device, seed, progress)
    return assemble(spec, weights, parts or PlainParts(), quantize)


def _num_elements(shapes: Shapes) -> int:
    return sum(math.prod(shape) for shape in shapes.values())


class _Reader:
    """Weights read from the files of a checkpoint."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        dtype: torch.dtype,
        device: str,
        progress: Callable[[float], None],
    ) -> None:
        self.num_parameters = _num_elements(checkpoint.shapes)
        self._checkpoint = checkpoint
        self.dtype = dtype
        self._device = device
        self._progress = progress
        self._read = 0

    def __contains__(self, name: object) -> bool:
        return name in self._checkpoint.shapes

    def tensor(self, name: str) -> torch.Tensor:
        return self._converted(name, self._checkpoint.tensor(name), self.dtype)

    def float32(self, name: str) -> torch.Tensor:
        return self._converted(name, self._checkpoint.tensor(name), torch.float32)

    def matrix(self, name: str) -> Weight:
        weight = self._checkpoint.matrix(name)
        if isinstance(weight, torch.Tensor):
            return self._converted(f"{name}.weight", weight, self.dtype)
        self._report(f"{name}.weight")
        return to_device(weight, self._device)

    def _converted(self, name: str, tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        tensor = tensor.to(self._device, dtype)
        self._report(name)
        return tensor

    def _report(self, name: str) -> None:
        self._read += math.prod(self._checkpoint.shapes[name])
        # Experts that cannot be grouped after all are read a second time.
        self._progress(min(self._read / self.num_parameters, 1.0))


class _Random:
    """Random weights: norms are 1, matrices preserve the magnitude of their inputs."""

    def __init__(
        self,
        expected: Shapes,
        dtype: torch.dtype,
        device: str,
        seed: int,
        progress: Callable[[float], None],
    ) -> None:
        self.num_parameters = _num_elements(expected)
        self._expected = expected
        self.dtype = dtype
        self._device = device
        self._progress = progress
        self._made = 0
        self._generator = torch.Generator(device).manual_seed(seed)

    def __contains__(self, name: object) -> bool:
        return name in self._expected

    def tensor(self, name: str) -> torch.Tensor:
        shape = self._expected[name]
        tensor = torch.empty(shape, dtype=self.dtype, device=self._device)
        self._made += tensor.numel()
        self._progress(self._made / self.num_parameters)
        if name.endswith("norm.weight"):
            return tensor.fill_(1.0)
        # A sum over ``shape[-1]`` inputs then has about the magnitude of one of them.
        return tensor.normal_(0.0, shape[-1] ** -0.5, generator=self._generator)

    def float32(self, name: str) -> torch.Tensor:
        return self.tensor(name).float()

    def matrix(self, name: str) -> Weight:
        return self.tensor(f"{name}.weight")
