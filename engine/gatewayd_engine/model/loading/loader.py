"""Weights of a checkpoint, or from a random generator, to a decoder."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from gatewayd_engine.model.build_decoder import Quantize, assemble
from gatewayd_engine.model.decoder import Decoder
from gatewayd_engine.model.loading.checkpoint import Checkpoint
from gatewayd_engine.model.loading.kv_scales import KvScales
from gatewayd_engine.model.loading.layout import Shapes, layout
from gatewayd_engine.model.parts import LayerParts, PlainParts
from gatewayd_engine.model.spec import ModelSpec
from gatewayd_engine.model.weights import placed
from gatewayd_hooks.quantization import Weight


def load(
    folder: Path,
    spec: ModelSpec,
    dtype: torch.dtype,
    device: str,
    progress: Callable[[float], None],
    parts: LayerParts | None = None,
) -> Decoder:
    """Load a checkpoint of floats.

    Args:
        folder: holds ``model.safetensors``, or shards and their index.
        spec: of the same folder.
        dtype: see ``read``.
        device: see ``read``.
        progress: see ``read``.
        parts: see ``read``.

    Raises:
        LoadError: a file is missing or corrupt, or its tensors are not the spec's.
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
    """Read a checkpoint, one matrix after the other.

    Args:
        checkpoint: closed afterwards.
        dtype: of the decoder, whatever the files hold.
        device: where the weights go.
        progress: told the fraction read so far, at last 1.0.
        parts: of the decoder; None for plain ones.
        quantize: makes weights of few bits; None for what the files hold.
        kv_scales: of keys and values, by layer, for weights to take up.

    Raises:
        LoadError: a tensor cannot be read, or its numbers cannot be.
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
    """A decoder of random weights, the same for the same seed and device."""
    weights = _Random(layout(spec), dtype, device, seed, progress)
    return assemble(spec, weights, parts or PlainParts(), quantize)


def _num_elements(shapes: Shapes) -> int:
    return sum(math.prod(shape) for shape in shapes.values())


class _Reader:
    """Tensors from the files."""

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

    def take(self, name: str) -> torch.Tensor:
        return self._took(name, self._checkpoint.tensor(name))

    def matrix(self, name: str) -> Weight:
        weight = self._checkpoint.matrix(name)
        if isinstance(weight, torch.Tensor):
            return self._took(f"{name}.weight", weight)
        self._tell(f"{name}.weight")
        return placed(weight, self._device)

    def _took(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        tensor = tensor.to(self._device, self.dtype)
        self._tell(name)
        return tensor

    def _tell(self, name: str) -> None:
        self._read += math.prod(self._checkpoint.shapes[name])
        # Experts of several formats are read once more.
        self._progress(min(self._read / self.num_parameters, 1.0))


class _Random:
    """Random tensors: norms of one, matrices that keep the size of what they map."""

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

    def take(self, name: str) -> torch.Tensor:
        shape = self._expected[name]
        tensor = torch.empty(shape, dtype=self.dtype, device=self._device)
        self._made += tensor.numel()
        self._progress(self._made / self.num_parameters)
        if name.endswith("norm.weight"):
            return tensor.fill_(1.0)
        return tensor.normal_(0.0, shape[-1] ** -0.5, generator=self._generator)

    def matrix(self, name: str) -> Weight:
        return self.take(f"{name}.weight")
