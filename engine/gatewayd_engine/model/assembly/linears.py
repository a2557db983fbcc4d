"""Building of linear layers and norms from named weights: joining, quantization and packing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from gatewayd_engine.model.batch_invariance import BatchInvariantMode
from gatewayd_engine.model.layers import Linear, LinearOp
from gatewayd_engine.model.linears.plugin_matmul import UnfitMatmul
from gatewayd_engine.model.loading.safetensors_headers import LoadError
from gatewayd_engine.model.parts import LayerParts, Norm
from gatewayd_engine.model.spec import ModelSpec
from gatewayd_engine.model.weights import concat_rows, dense, to_device, to_dtype
from gatewayd_hooks.quantization import Matrix, Weight


class Weights(Protocol):
    """Source of the tensors of a ``layout``: a checkpoint or a random generator."""

    num_parameters: int
    """Elements of all tensors together."""
    dtype: torch.dtype
    """Dtype of the decoder."""

    def __contains__(self, name: object) -> bool:
        """Whether the layout has a tensor with this name."""

    def tensor(self, name: str) -> torch.Tensor:
        """Return a tensor by its name, in the decoder's dtype and on its device."""

    def float32(self, name: str) -> torch.Tensor:
        """Return a tensor by its name in float32, whatever the decoder's dtype, on its device."""

    def matrix(self, name: str) -> Weight:
        """Return a matrix, possibly quantized, by its name without ``.weight``."""


Quantize = Callable[[Matrix, torch.Tensor], Weight]
"""Quantizes a float weight, or returns it unchanged."""


class LinearBuilder:
    """Builder of a decoder's linear layers and norms.

    Args:
        spec: of the model.
        weights: its tensors.
        parts: factory of operations for the device.
        quantize: called for each float matrix; None to keep all as they are.
        device: of the weights.

    Attributes:
        weights, device: as given.
        nbytes: bytes of the weights built so far.
    """

    def __init__(
        self,
        spec: ModelSpec,
        weights: Weights,
        parts: LayerParts,
        quantize: Quantize | None,
        device: torch.device,
    ) -> None:
        self.weights = weights
        self.device = device
        self.nbytes = 0
        self._spec = spec
        self._parts = parts
        self._quantize = quantize
        self._made: list[LinearOp] = []

    def norm(self, name: str, entry: LinearOp | None = None) -> Norm:
        """Build a norm of the residual stream; ``entry`` is the only matrix it feeds, if any."""
        weight = self.weights.tensor(f"{name}.weight")
        self.nbytes += weight.nbytes
        offset = float(self._spec.family.norm_offset)
        return self._parts.norm(weight, self._spec.norm_eps, offset, entry)

    def linear(self, name: str) -> LinearOp:
        """Build a linear layer by its name, with its bias if it has one."""
        return self.packed(name, self.weights.matrix(name), self.read_bias((name,)))

    def small(self, name: str, *, in_float32: bool = False) -> LinearOp:
        """Build a linear layer that is never quantized; see ``assemble``.

        Args:
            name: of the matrix.
            in_float32: whether it maps float32 to float32, whatever the decoder's dtype.
        """
        weight, bias = self.weights.matrix(name), self.read_bias((name,))
        if not in_float32 or self.weights.dtype == torch.float32:
            return self.packed(name, weight, bias, is_kept=True)
        bias = None if bias is None else bias.float()
        return self._recorded(Linear(dense(to_device(weight, self.device)).float(), bias))

    def packed(
        self,
        name: str,
        weight: Weight,
        bias: torch.Tensor | None = None,
        *,
        is_kept: bool = False,
        activation: str | None = None,
    ) -> LinearOp:
        """Build a linear layer from a weight, quantized first unless ``is_kept``.

        ``activation`` is that of the gate that is its only consumer; see ``LayerParts.linear``.

        Raises:
            LoadError: a matmul plugin fails on it.
        """
        if not is_kept:
            weight = self.quantized(name, weight)
        return self._linear(name, self.settled(weight), bias, activation)

    def quantized(self, name: str, weight: Weight) -> Weight:
        """Quantize a float weight as the quantizer chooses."""
        if isinstance(weight, torch.Tensor) and self._quantize is not None:
            return self._quantize(Matrix(name, *weight.shape), weight.float())
        return weight

    def settled(self, weight: Weight) -> Weight:
        """Move a weight to the device, with floats in the decoder's dtype."""
        return to_dtype(to_device(weight, self.device), self.weights.dtype)

    def matrix_names(self, prefix: str, joined: str, parts: tuple[str, ...]) -> list[str]:
        """Return the names of matrices with a common input, stored fused or separately."""
        # Phi-3 releases store these projections fused.
        is_joined = f"{prefix}.{joined}.weight" in self.weights
        return [f"{prefix}.{part}" for part in ((joined,) if is_joined else parts)]

    def read_joined(self, names: Sequence[str]) -> Weight:
        """Read matrices with a common input, one below the other."""
        return concat_rows([self.weights.matrix(name) for name in names])

    def read_bias(self, names: Sequence[str]) -> torch.Tensor | None:
        """Read the biases of matrices with a common input; None if they have none."""
        if f"{names[0]}.bias" not in self.weights:
            return None
        return torch.cat([self.weights.tensor(f"{name}.bias") for name in names])

    def set_batch_invariant(self, head: LinearOp, others: Sequence[object]) -> bool:
        """Make float operations batch-invariant if any product quantizes its input.

        Args:
            head: projection to the vocabulary, whose output is not quantized.
            others: operations other than linear layers.

        Returns:
            Whether one does.
        """
        if not any(linear.rounds_inputs for linear in self._made):
            return False
        linears = [linear for linear in self._made if linear is not head]
        # Other parts, such as integer products, are batch-invariant already.
        for part in (*others, *linears):
            if isinstance(part, BatchInvariantMode):
                part.is_steady = True
        return True

    def _linear(
        self, name: str, weight: Weight, bias: torch.Tensor | None, activation: str | None
    ) -> LinearOp:
        try:
            made = self._parts.linear(weight, bias, self.weights.dtype, activation)
        except UnfitMatmul as error:
            raise LoadError(f"{name}: {error}") from error
        return self._recorded(made)

    def _recorded(self, made: LinearOp) -> LinearOp:
        self.nbytes += made.nbytes
        self._made.append(made)
        return made
