"""One layer of a model at a time, in float32, with other weights in places, looked into."""

from __future__ import annotations

from collections.abc import Callable

import torch

from gatewayd_engine.model.build_decoder import LayerBuilder
from gatewayd_engine.model.decoder import DecoderLayer
from gatewayd_engine.model.layers import FeedForward, Linear, LinearOp
from gatewayd_engine.model.loading.checkpoint import Checkpoint
from gatewayd_engine.model.loading.layout import layer_norms
from gatewayd_engine.model.moe import Router
from gatewayd_engine.model.parts import Norm, PlainParts
from gatewayd_engine.model.weights import dense
from gatewayd_engine.offline.quantize.full_attention import WholeSequence
from gatewayd_hooks.quantization import Matrix, Weight

Watch = Callable[[str, torch.Tensor], None]
"""Told what a matrix, by the name that the decoder gives it, is multiplied with, ``[n, in]``."""


class LayerTensors:
    """The tensors of a layer: those of the checkpoint, or what has taken their places.

    Args:
        checkpoint: of floats.

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

    def take(self, name: str) -> torch.Tensor:
        """See ``Weights``; not to be written to."""
        if name not in self._kept:
            self._kept[name] = self.checkpoint.tensor(name).float()
        return self._kept[name]

    def matrix(self, name: str) -> Weight:
        """See ``Weights``."""
        return self.take(f"{name}.weight")

    def put(self, name: str, tensor: torch.Tensor) -> None:
        """Let float32 numbers take the place of a tensor."""
        self._kept[name] = tensor


class Layers:
    """Runs layers over whole sequences.

    Args:
        checkpoint: of the model.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint
        self._spec = checkpoint.spec
        self._attend = WholeSequence(checkpoint.spec.attention)

    def embedded(self, ids: torch.Tensor) -> torch.Tensor:
        """What the first layer is given, float32 ``[n, hidden]``, for token ids ``[n]``."""
        table = dense(self.checkpoint.matrix("model.embed_tokens"))
        scale = self._spec.embedding_scale
        return table[ids].float() * (1.0 if scale is None else scale)

    def open(self, index: int, tensors: LayerTensors, watch: Watch | None = None) -> OpenLayer:
        """Build a layer of what tensors there are now."""
        builder = self._builder(tensors, watch)
        return OpenLayer(builder.layer(index), builder, self._attend)

    def open_before_experts(
        self, index: int, tensors: LayerTensors, watch: Watch | None = None
    ) -> OpenLayer:
        """The same without its experts, none of which is read."""
        builder = self._builder(tensors, watch)
        return OpenLayer(builder.layer(index, _Nothing()), builder, self._attend)

    def routing(self, index: int) -> tuple[Norm, Router]:
        """What makes the inputs of a layer's experts, and what chooses among them."""
        builder = self._builder(LayerTensors(self.checkpoint))
        norm = f"model.layers.{index}.{layer_norms(self._spec)[1]}"
        return builder.norm(norm), builder.router(index)

    def open_expert(
        self, index: int, number: int, tensors: LayerTensors, watch: Watch | None = None
    ) -> FeedForward:
        """One of the experts of a layer, of what tensors there are now."""
        return self._builder(tensors, watch).expert(index, number)

    def _builder(self, tensors: LayerTensors, watch: Watch | None = None) -> LayerBuilder:
        parts = _WatchedParts(watch)
        return LayerBuilder(self._spec, tensors, parts, parts.named, torch.device("cpu"))


class OpenLayer:
    """A layer with its weights, and what it needs to be run."""

    def __init__(self, layer: DecoderLayer, builder: LayerBuilder, attend: WholeSequence) -> None:
        self._layer = layer
        self._rotary = builder.rotary
        self._attend = attend

    def __call__(self, stream: torch.Tensor) -> torch.Tensor:
        """The residual stream behind the layer, new, for that of a sequence, ``[n, hidden]``."""
        after = stream.clone()
        rotation = self._rotary.at(torch.arange(len(stream)))
        left = self._layer(after, None, rotation, self._attend)
        return after if left is None else after.add_(left)


class _Nothing:
    """A feed-forward part that adds nothing."""

    entry = None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """See ``Mlp``."""
        return torch.zeros_like(x)

    def add_to(self, onto: torch.Tensor, x: torch.Tensor) -> None:
        """See ``Mlp``."""


class _WatchedParts(PlainParts):
    """Matrices that tell what they are multiplied with.

    Before it makes one, a builder asks for its weight by name: that is where names come from.
    Those that it does not ask for, as routers, tell nothing.
    """

    def __init__(self, watch: Watch | None) -> None:
        self._watch = watch
        self._name = ""

    def named(self, matrix: Matrix, weight: torch.Tensor) -> Weight:
        """Learn what comes next; see ``Quantize``."""
        self._name = matrix.name
        return weight

    def linear(self, weight: Weight, bias: torch.Tensor | None, dtype: torch.dtype) -> LinearOp:
        """See ``Parts``."""
        name, self._name = self._name, ""
        linear = Linear(dense(weight), bias)
        return linear if self._watch is None or not name else _Watched(linear, name, self._watch)


class _Watched:
    """A matrix that tells what it is multiplied with."""

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
