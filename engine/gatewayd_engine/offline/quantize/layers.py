"""Execution of single layers in float32, with replaceable weights and observable inputs."""

from __future__ import annotations

from collections.abc import Callable

import torch

from gatewayd_engine.model.assembly.decoder import LayerBuilder
from gatewayd_engine.model.config.moe import SharedExpert
from gatewayd_engine.model.config.rope import QueryScale
from gatewayd_engine.model.decoder import DecoderLayer, of_positions
from gatewayd_engine.model.layers import FeedForward, Linear, LinearOp
from gatewayd_engine.model.loading.checkpoint import Checkpoint
from gatewayd_engine.model.loading.layout import sinks_names
from gatewayd_engine.model.parts import Norm, PlainParts
from gatewayd_engine.model.rotary_embedding import Rotary
from gatewayd_engine.model.router import Router, SharedGate
from gatewayd_engine.model.weights import dense
from gatewayd_engine.offline.quantize.full_attention import FullSequenceAttention
from gatewayd_hooks.quantization import Matrix, Weight

Watch = Callable[[str, torch.Tensor], None]
"""Called with the decoder's name of a matrix and its input, ``[n, in]``."""


class LayerTensors:
    """Tensors of a layer, read from a checkpoint unless replaced; implements ``Weights``.

    Args:
        checkpoint: unquantized.

    Attributes:
        checkpoint: the same.
    """

    num_parameters = 0
    dtype = torch.float32

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint
        self._kept: dict[str, torch.Tensor] = {}

    def __contains__(self, name: object) -> bool:
        """See ``Weights``."""
        return name in self.checkpoint.shapes

    def tensor(self, name: str) -> torch.Tensor:
        """See ``Weights``; must not be modified in place."""
        if name not in self._kept:
            self._kept[name] = self.checkpoint.tensor(name).float()
        return self._kept[name]

    def float32(self, name: str) -> torch.Tensor:
        """See ``Weights``."""
        return self.tensor(name)

    def matrix(self, name: str) -> Weight:
        """See ``Weights``."""
        return self.tensor(f"{name}.weight")

    def replace(self, name: str, tensor: torch.Tensor) -> None:
        """Replace a tensor by a float32 one."""
        self._kept[name] = tensor


class Layers:
    """Builder of single layers of a model, which run over whole sequences.

    Args:
        checkpoint: of the model.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint
        self._spec = checkpoint.spec
        sinks = [checkpoint.tensor(name).float() for name in sinks_names(self._spec)] or None
        self._attend = FullSequenceAttention(self._spec.attention, sinks)

    def embedded(self, ids: torch.Tensor) -> torch.Tensor:
        """Embed token ids ``[n]``; float32 ``[n, hidden]``."""
        table = dense(self.checkpoint.matrix("model.embed_tokens"))
        scale = self._spec.embedding_scale
        # Only the rows of these tokens are widened to float32.
        return table[ids].float() * (1.0 if scale is None else scale)

    def open(self, index: int, tensors: LayerTensors, watch: Watch | None = None) -> OpenLayer:
        """Build a layer from the current tensors."""
        builder = self._builder(tensors, watch)
        return self._opened(builder, builder.layer(index), index)

    def open_before_experts(
        self, index: int, tensors: LayerTensors, watch: Watch | None = None
    ) -> OpenLayer:
        """Build a layer without its experts, none of which is read."""
        builder = self._builder(tensors, watch)
        return self._opened(builder, builder.layer(index, _NoMlp()), index)

    def routing(self, index: int) -> tuple[Norm, Router]:
        """Build the norm before a layer's experts, and their router."""
        builder = self._builder(LayerTensors(self.checkpoint))
        return builder.norm_before_mlp(index), builder.router(index)

    def norm_after_experts(self, index: int) -> Norm | None:
        """Build the norm of the sum of a layer's experts; None for none."""
        return self._builder(LayerTensors(self.checkpoint)).norm_after_mlp(index)

    def open_expert(
        self, index: int, number: int, tensors: LayerTensors, watch: Watch | None = None
    ) -> FeedForward:
        """Build one of the experts of a layer from the current tensors."""
        return self._builder(tensors, watch).expert(index, number)

    def shared_gate(self, index: int, shared: SharedExpert) -> SharedGate | None:
        """Build the gate of a layer's shared expert; None if it has none."""
        return self._builder(LayerTensors(self.checkpoint)).shared_gate(index, shared)

    def open_shared_expert(
        self, index: int, shared: SharedExpert, tensors: LayerTensors, watch: Watch | None = None
    ) -> FeedForward:
        """Build the shared expert of a layer from the current tensors."""
        return self._builder(tensors, watch).shared_expert(index, shared)

    def _opened(self, builder: LayerBuilder, layer: DecoderLayer, index: int) -> OpenLayer:
        return OpenLayer(layer, builder.rotaries[index], self._spec.query_scale, self._attend)

    def _builder(self, tensors: LayerTensors, watch: Watch | None = None) -> LayerBuilder:
        parts = _WatchedParts(watch)
        return LayerBuilder(self._spec, tensors, parts, parts.named, torch.device("cpu"))


class OpenLayer:
    """A layer with its rotary embedding and attention, ready to run."""

    def __init__(
        self,
        layer: DecoderLayer,
        rotary: Rotary,
        query_scale: QueryScale | None,
        attend: FullSequenceAttention,
    ) -> None:
        self._layer = layer
        self._rotary = rotary
        self._query_scale = query_scale
        self._attend = attend

    def __call__(self, stream: torch.Tensor) -> torch.Tensor:
        """Map the residual stream of a sequence, ``[n, hidden]``, to a new one after the layer."""
        # The layer advances its input in place, and ``stream`` is used again.
        after = stream.clone()
        positions = torch.arange(len(stream))
        of = of_positions(self._rotary, self._query_scale, positions, rotates=False)
        left = self._layer(after, None, of, self._attend)
        return after if left is None else after.add_(left)


class _NoMlp:
    """A feed-forward part that adds nothing; see ``Mlp``."""

    entry = None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """See ``Mlp``."""
        return torch.zeros_like(x)

    def add_to(self, onto: torch.Tensor, x: torch.Tensor) -> None:
        """See ``Mlp``."""


class _WatchedParts(PlainParts):
    """Parts whose linear layers report their inputs to a ``Watch``.

    Names are learnt from the builder's ``quantize`` call, which comes before each linear layer.
    Layers without that call, such as routers, are not observed.
    """

    def __init__(self, watch: Watch | None) -> None:
        self._watch = watch
        self._name = ""

    def named(self, matrix: Matrix, weight: torch.Tensor) -> Weight:
        """Remember the name of the next linear layer; see ``Quantize``."""
        self._name = matrix.name
        return weight

    def linear(
        self,
        weight: Weight,
        bias: torch.Tensor | None,
        dtype: torch.dtype,
        activation: str | None = None,
    ) -> LinearOp:
        """See ``LayerParts``."""
        # Cleared, so that a layer without the call does not inherit the name.
        name, self._name = self._name, ""
        linear = Linear(dense(weight), bias)
        return linear if self._watch is None or not name else _Watched(linear, name, self._watch)


class _Watched:
    """Linear layer that reports its inputs to a ``Watch``."""

    def __init__(self, linear: LinearOp, name: str, watch: Watch) -> None:
        self._linear = linear
        self._name = name
        self._watch = watch

    @property
    def nbytes(self) -> int:
        """See ``LinearOp``."""
        return self._linear.nbytes

    @property
    def rounds_inputs(self) -> bool:
        """See ``LinearOp``."""
        return self._linear.rounds_inputs

    def __call__(self, x: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
        """See ``LinearOp``."""
        self._watch(self._name, x)
        return self._linear(x, out=out)

    def add_to(self, onto: torch.Tensor, x: torch.Tensor) -> torch.Tensor | None:
        """See ``LinearOp``."""
        self._watch(self._name, x)
        return self._linear.add_to(onto, x)
