"""What a decoder is built of: on a CPU plain torch, on a device matrices around fused kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, cast

import torch

from gatewayd_engine.model.layers import Gated, LinearOp, RMSNorm
from gatewayd_engine.model.linears.expert_stacks import Stack, form_of
from gatewayd_engine.model.linears.norm_gate_fusion import FusedGate as Fused
from gatewayd_engine.model.linears.norm_gate_fusion import FusedNorm
from gatewayd_engine.model.linears.plugin_matmul import Bringers
from gatewayd_engine.model.linears.select_cpu import choose
from gatewayd_engine.model.linears.select_gpu import Apart, DeviceLinears
from gatewayd_engine.model.linears.w8a8_gpu import RoundedLinear
from gatewayd_engine.model.moe import GroupedExperts
from gatewayd_hooks.quantization import GroupedWeight, StaticWeight

if TYPE_CHECKING:
    from gatewayd_engine.kernels.base import Kernels
    from gatewayd_engine.kernels.experts.base import Form
    from gatewayd_engine.kernels.quantized.base import Activation
    from gatewayd_engine.kernels.quantized.scratch import SharedScratch
    from gatewayd_engine.model.moe import Router
    from gatewayd_hooks.quantization import Weight

Gate = Callable[[torch.Tensor], torch.Tensor]
"""Maps gates and what they gate, ``[n, 2 * size]``, to a new ``[n, size]``."""


class Norm(Protocol):
    """A norm of the residual stream."""

    def __call__(self, x: torch.Tensor, delta: torch.Tensor | None = None) -> torch.Tensor:
        """Add ``delta`` onto ``[n, hidden]`` in place, and normalise that into a new tensor."""


class LayerParts(Protocol):
    """Makes the parts of layers from their weights."""

    @property
    def experts(self) -> ExpertParts | None:
        """Makes mixtures of experts that are multiplied at once; None where none are."""

    def linear(self, weight: Weight, bias: torch.Tensor | None, dtype: torch.dtype) -> LinearOp:
        """See ``LinearOp``; ``dtype`` is that of activations."""

    def norm(
        self, weight: torch.Tensor, eps: float, offset: float, entry: LinearOp | None = None
    ) -> Norm:
        """A norm with a weight ``[hidden]``, to which ``offset`` is added.

        What it makes is in the form that ``entry`` takes best, if one matrix alone is given it.
        """

    def head_norm(self, weight: torch.Tensor, eps: float) -> Callable[[torch.Tensor], object]:
        """A norm of each head in place, with a weight ``[heads, head_dim]``."""

    def gate(self, name: str, entry: LinearOp, source: LinearOp | None = None) -> Gate:
        """A gate by its function's name in ``ModelSpec``, for one matrix; see ``norm``.

        ``source`` makes what it is given, if nothing else is given that.
        """


class ExpertParts:
    """Makes mixtures of experts that are multiplied at once, whatever the routing.

    Args:
        kernels: of the device.
        takes_codes: whether low-bit matrices are multiplied so, too.
    """

    def __init__(self, kernels: Kernels, *, takes_codes: bool = True) -> None:
        self._kernels = kernels
        self._takes_codes = takes_codes
        self._compiled: set[tuple[object, ...]] = set()

    def of_floats(self) -> ExpertParts:
        """The same for matrices of floats alone."""
        return ExpertParts(self._kernels, takes_codes=False)

    def form(self, weight: Weight, dtype: torch.dtype) -> Form | None:
        """How a matrix of an expert is kept; None for one that only a product of its own takes."""
        if isinstance(weight, GroupedWeight) and not self._takes_codes:
            return None
        return form_of(weight, dtype)

    def stack(self, first: Form, experts: int, rows: int, columns: int) -> Stack:
        """Room for one matrix ``[rows, columns]`` of each expert, all of the first one's form."""
        return Stack(first, experts, rows, columns, self._kernels)

    def mixture(
        self, router: Router, gate_up: Stack, down: Stack, name: str, dtype: torch.dtype
    ) -> GroupedExperts:
        """A layer's experts, with a gate by its function's name in ``ModelSpec``.

        Args:
            router: of the layer.
            gate_up: filled.
            down: filled.
            name: of the function.
            dtype: of activations.
        """
        made = GroupedExperts(router, gate_up, down, cast("Activation", name), self._kernels)
        # Blocks depend on the tokens, and few of their sizes are seen before there are requests.
        kind = (gate_up.kind, down.kind, router.top_k)
        if kind not in self._compiled:
            made.compile(dtype)
            self._compiled.add(kind)
        return made


class PlainParts:
    """Torch's operations, one after the other."""

    experts: ExpertParts | None = None

    def linear(self, weight: Weight, bias: torch.Tensor | None, dtype: torch.dtype) -> LinearOp:
        """See ``LayerParts``."""
        return choose(weight, bias)

    def norm(
        self, weight: torch.Tensor, eps: float, offset: float, entry: LinearOp | None = None
    ) -> Norm:
        """See ``LayerParts``."""
        return RMSNorm(weight, eps, offset)

    def head_norm(self, weight: torch.Tensor, eps: float) -> Callable[[torch.Tensor], object]:
        """See ``LayerParts``."""
        norm = RMSNorm(weight, eps)
        return lambda heads: heads.copy_(norm(heads))

    def gate(self, name: str, entry: LinearOp, source: LinearOp | None = None) -> Gate:
        """See ``LayerParts``."""
        return Gated(name)


class FusedParts:
    """Kernels that pass over the activations once; for one decoder.

    Args:
        kernels: of the device.
        scratch: what matrices of few bits are multiplied in; None for one of its own.

    Attributes:
        fusion: which norms and gates matrices take over; none until that is chosen.
    """

    def __init__(self, kernels: Kernels, scratch: SharedScratch | None = None) -> None:
        self._kernels = kernels
        self._linears = DeviceLinears(kernels, scratch)
        self.experts: ExpertParts | None = ExpertParts(kernels)
        self.fusion = self._linears.fusion

    @property
    def dense(self) -> list[Apart]:
        """The matrices of floats made so far, whose products may be chosen."""
        return self._linears.dense

    def linear(self, weight: Weight, bias: torch.Tensor | None, dtype: torch.dtype) -> LinearOp:
        """See ``LayerParts``."""
        return self._linears.make(weight, bias, dtype)

    def norm(
        self, weight: torch.Tensor, eps: float, offset: float, entry: LinearOp | None = None
    ) -> Norm:
        """See ``LayerParts``."""
        scale = weight.float() + offset
        if isinstance(entry, RoundedLinear) and not entry.is_static:
            quant, codes, group = self._kernels.add_rms_norm_quant, entry.takes, entry.group
            # The matrix alone is given it.
            return cast("Norm", lambda x, delta=None: quant(x, delta, scale, eps, codes, group))
        fused = self._kernels.add_rms_norm
        if not isinstance(entry, Apart):
            return lambda x, delta=None: fused(x, delta, scale, eps)
        fusion = self.fusion
        fusion.is_possible = True

        def norm(x: torch.Tensor, delta: torch.Tensor | None = None) -> torch.Tensor:
            if x.shape[0] not in fusion.lines:
                return fused(x, delta, scale, eps)
            if delta is not None:
                x.add_(delta)
            # The matrix alone is given it.
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
        if not isinstance(source, Apart):
            return lambda joined: fused(joined, act)
        source.act = act
        return lambda joined: joined.value if isinstance(joined, Fused) else fused(joined, act)


class BringingParts:
    """Parts whose matrices of few bits are plugins', as far as these take them.

    Args:
        parts: of all else, and of what no plugin takes.
        bringers: the plugins.
    """

    def __init__(self, parts: LayerParts, bringers: Bringers) -> None:
        self._parts = parts
        self._bringers = bringers
        self.norm = parts.norm
        self.head_norm = parts.head_norm
        self.gate = parts.gate
        # Plugins are asked for each low-bit matrix.
        self.experts = None if parts.experts is None else parts.experts.of_floats()

    def linear(self, weight: Weight, bias: torch.Tensor | None, dtype: torch.dtype) -> LinearOp:
        """See ``LayerParts``.

        Raises:
            UnfitProduct: a plugin fails at it.
        """
        if isinstance(weight, GroupedWeight):
            brought = self._bringers.make(weight, bias, dtype)
            if brought is not None:
                return brought
        elif isinstance(weight, StaticWeight) and isinstance(weight.weight, GroupedWeight):
            self._bringers.pass_over()
        return self._parts.linear(weight, bias, dtype)


def with_brought(parts: LayerParts, bringers: Bringers) -> LayerParts:
    """Parts whose matrices of few bits plugins are asked for first, if there are any."""
    return BringingParts(parts, bringers) if bringers else parts
