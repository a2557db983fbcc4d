"""Factories of a decoder's operations: plain torch for CPUs, fused kernels for GPUs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, cast

import torch

from gatewayd_engine.kernels.experts.base import ClampedAct
from gatewayd_engine.model.layers import Gated, HeadNorm, LinearOp, RMSNorm
from gatewayd_engine.model.linears.expert_stacks import Stack, form_of
from gatewayd_engine.model.linears.norm_gate_fusion import FusedGate as Fused
from gatewayd_engine.model.linears.norm_gate_fusion import FusedNorm
from gatewayd_engine.model.linears.plugin_matmul import MatmulPlugins
from gatewayd_engine.model.linears.select_cpu import make_cpu_linear
from gatewayd_engine.model.linears.select_gpu import DenseGpuLinear, DeviceLinears
from gatewayd_engine.model.linears.w8a8_gpu import RoundedLinear
from gatewayd_engine.model.moe import GroupedExperts
from gatewayd_hooks.quantization import GroupedWeight, StaticWeight

if TYPE_CHECKING:
    from gatewayd_engine.kernels.base import Kernels
    from gatewayd_engine.kernels.experts.base import Form
    from gatewayd_engine.kernels.quantized.base import Activation
    from gatewayd_engine.kernels.quantized.scratch import SharedScratch
    from gatewayd_engine.model.router import Router
    from gatewayd_hooks.quantization import Weight

Gate = Callable[[torch.Tensor], torch.Tensor]
"""Maps gate and up projections, ``[n, 2 * size]``, to a new ``[n, size]``."""


class Norm(Protocol):
    """A norm of the residual stream."""

    def __call__(self, x: torch.Tensor, delta: torch.Tensor | None = None) -> torch.Tensor:
        """Add ``delta`` onto ``x``, ``[n, hidden]``, in place; return it normalised, as a copy."""


class LayerParts(Protocol):
    """Factory of a decoder layer's operations from their weights."""

    @property
    def experts(self) -> ExpertParts | None:
        """Factory of grouped experts; None where experts run one at a time."""

    def linear(
        self,
        weight: Weight,
        bias: torch.Tensor | None,
        dtype: torch.dtype,
        activation: str | None = None,
    ) -> LinearOp:
        """Make a linear layer.

        Args:
            weight: the matrix.
            bias: float, shape ``[out]``.
            dtype: of activations.
            activation: of the gate that is the layer's only consumer, which the layer may apply
                itself; None for no gate.
        """

    def norm(
        self, weight: torch.Tensor, eps: float, offset: float, entry: LinearOp | None = None
    ) -> Norm:
        """Make an RMS norm with weight ``[hidden]`` plus ``offset``.

        Its output is in the form that ``entry`` reads fastest, if that matrix is its only consumer.
        """

    def head_norm(self, weight: torch.Tensor, eps: float) -> Callable[[torch.Tensor], object]:
        """Make an in-place norm of each head, with a weight ``[heads, head_dim]``."""

    def gate(self, name: str, entry: LinearOp, source: LinearOp | None = None) -> Gate:
        """Make a gated activation, by the function's name in ``ModelSpec``.

        ``entry`` is its only consumer; see ``norm``. ``source`` is the matrix that produces its
        input, if the gate is the only consumer of that.
        """


class ExpertParts:
    """Factory of ``GroupedExperts``.

    Args:
        kernels: of the device.
        takes_codes: whether quantized matrices are grouped, too.
    """

    def __init__(self, kernels: Kernels, *, takes_codes: bool = True) -> None:
        self._kernels = kernels
        self._takes_codes = takes_codes
        self._compiled: set[tuple[object, ...]] = set()

    def of_floats(self) -> ExpertParts:
        """Return a factory that groups float matrices only."""
        return ExpertParts(self._kernels, takes_codes=False)

    def form(self, weight: Weight, dtype: torch.dtype) -> Form | None:
        """Convert an expert's matrix to its grouped form; None if it cannot be grouped."""
        if isinstance(weight, GroupedWeight) and not self._takes_codes:
            return None
        return form_of(weight, dtype)

    def stack(self, first: Form, experts: int, rows: int, columns: int) -> Stack:
        """Allocate a stack for one matrix ``[rows, columns]`` of each expert, like ``first``."""
        return Stack(first, experts, rows, columns, self._kernels)

    def mixture(
        self, router: Router, gate_up: Stack, down: Stack, act: str | ClampedAct, dtype: torch.dtype
    ) -> GroupedExperts:
        """Make the experts of a layer and compile their kernels.

        Args:
            router: of the layer.
            gate_up: with all experts set.
            down: with all experts set.
            act: name of the activation function, as in ``ModelSpec``, or a clamped one.
            dtype: of activations.
        """
        named = act if isinstance(act, ClampedAct) else cast("Activation", act)
        made = GroupedExperts(router, gate_up, down, named, self._kernels)
        # Block sizes depend on the number of tokens, and warm-up steps cover few of them.
        kind = (gate_up.kind, down.kind, router.routing)
        if kind not in self._compiled:
            made.compile(dtype)
            self._compiled.add(kind)
        return made


class PlainParts:
    """Unfused torch operations, for CPUs."""

    experts: ExpertParts | None = None

    def linear(
        self,
        weight: Weight,
        bias: torch.Tensor | None,
        dtype: torch.dtype,
        activation: str | None = None,
    ) -> LinearOp:
        """See ``LayerParts``."""
        return make_cpu_linear(weight, bias)

    def norm(
        self, weight: torch.Tensor, eps: float, offset: float, entry: LinearOp | None = None
    ) -> Norm:
        """See ``LayerParts``."""
        return RMSNorm(weight, eps, offset)

    def head_norm(self, weight: torch.Tensor, eps: float) -> Callable[[torch.Tensor], object]:
        """See ``LayerParts``."""
        return HeadNorm(weight, eps)

    def gate(self, name: str, entry: LinearOp, source: LinearOp | None = None) -> Gate:
        """See ``LayerParts``."""
        return Gated(name)


class FusedParts:
    """Fused GPU kernels for one decoder.

    Args:
        kernels: of the device.
        scratch: scratch memory of quantized products; None for one of its own.

    Attributes:
        fusion: batch sizes at which norms and gates are fused into matrix products; empty until
            tuned.
    """

    def __init__(self, kernels: Kernels, scratch: SharedScratch | None = None) -> None:
        self._kernels = kernels
        self._linears = DeviceLinears(kernels, scratch)
        self.experts: ExpertParts | None = ExpertParts(kernels)
        self.fusion = self._linears.fusion

    @property
    def dense(self) -> list[DenseGpuLinear]:
        """The float matrices made so far, whose kernels can be tuned."""
        return self._linears.dense

    def linear(
        self,
        weight: Weight,
        bias: torch.Tensor | None,
        dtype: torch.dtype,
        activation: str | None = None,
    ) -> LinearOp:
        """See ``LayerParts``."""
        return self._linears.make(weight, bias, dtype)

    def norm(
        self, weight: torch.Tensor, eps: float, offset: float, entry: LinearOp | None = None
    ) -> Norm:
        """See ``LayerParts``."""
        # Once, at load time: kernels take the complete weight.
        scale = weight.float() + offset
        # The form of the output is decided here, not in each step. Static scales are not applied by
        # fused kernels, so such matrices quantize their inputs themselves.
        if isinstance(entry, RoundedLinear) and not entry.is_static:
            quant, codes, group = self._kernels.add_rms_norm_quant, entry.takes, entry.group
            # ``entry`` is the only consumer, and it accepts codes.
            return cast("Norm", lambda x, delta=None: quant(x, delta, scale, eps, codes, group))
        fused = self._kernels.add_rms_norm
        if not isinstance(entry, DenseGpuLinear):
            return lambda x, delta=None: fused(x, delta, scale, eps)
        fusion = self.fusion
        fusion.is_possible = True

        def norm(x: torch.Tensor, delta: torch.Tensor | None = None) -> torch.Tensor:
            if x.shape[0] not in fusion.lines:
                return fused(x, delta, scale, eps)
            if delta is not None:
                # The fused product reads the stream, but adds nothing to it.
                x.add_(delta)
            # ``entry`` is the only consumer, and it applies the norm.
            return cast("torch.Tensor", FusedNorm(x, scale, eps))

        return norm

    def head_norm(self, weight: torch.Tensor, eps: float) -> Callable[[torch.Tensor], object]:
        """See ``LayerParts``."""
        fused, scale = self._kernels.norm_heads, weight.float().contiguous()
        return lambda heads: fused(heads, scale, eps)

    def gate(self, name: str, entry: LinearOp, source: LinearOp | None = None) -> Gate:
        """See ``LayerParts``."""
        act = cast("Activation", name)
        if isinstance(entry, RoundedLinear) and not entry.is_static:
            quant, codes, group = self._kernels.gated_quant, entry.takes, entry.group
            return cast("Gate", lambda joined: quant(joined, act, codes, group))
        fused = self._kernels.gated
        if not isinstance(source, DenseGpuLinear):
            return lambda joined: fused(joined, act)
        # A product that applies the norm applies the gate as well, and returns a ``FusedGate``.
        source.act = act
        return lambda joined: joined.value if isinstance(joined, Fused) else fused(joined, act)


class PluginMatmulParts:
    """Parts that let matmul plugins multiply quantized matrices.

    Args:
        parts: for all other operations, and for matrices that no plugin supports.
        matmul_plugins: the plugins.
    """

    def __init__(self, parts: LayerParts, matmul_plugins: MatmulPlugins) -> None:
        self._parts = parts
        self._matmul_plugins = matmul_plugins
        self.norm = parts.norm
        self.head_norm = parts.head_norm
        self.gate = parts.gate
        # Plugins multiply single matrices, so quantized experts cannot be grouped.
        self.experts = None if parts.experts is None else parts.experts.of_floats()

    def linear(
        self,
        weight: Weight,
        bias: torch.Tensor | None,
        dtype: torch.dtype,
        activation: str | None = None,
    ) -> LinearOp:
        """See ``LayerParts``.

        Raises:
            UnfitMatmul: a plugin fails on the matrix.
        """
        if isinstance(weight, GroupedWeight):
            linear = self._matmul_plugins.make(weight, bias, dtype)
            if linear is not None:
                return linear
        elif isinstance(weight, StaticWeight) and isinstance(weight.weight, GroupedWeight):
            self._matmul_plugins.record_skipped()
        return self._parts.linear(weight, bias, dtype, activation)


def with_matmul_plugins(parts: LayerParts, matmul_plugins: MatmulPlugins) -> LayerParts:
    """Wrap parts so that plugins are tried first for quantized matrices, if there are any."""
    return PluginMatmulParts(parts, matmul_plugins) if matmul_plugins else parts
