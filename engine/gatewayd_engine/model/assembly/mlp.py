"""Building of a layer's feed-forward part: dense, or experts one at a time or grouped."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import torch

from gatewayd_engine.kernels.experts.base import ClampedAct
from gatewayd_engine.model.assembly.linears import LinearBuilder
from gatewayd_engine.model.config.moe import ClampedGate, MoeSpec, SharedExpert
from gatewayd_engine.model.decoder import Mlp
from gatewayd_engine.model.layers import ClampedGated, FeedForward
from gatewayd_engine.model.linears.expert_stacks import Stack, describe_weight
from gatewayd_engine.model.loading.layout import (
    CORRECTION,
    expert_parts,
    expert_prefix,
    mlp_prefix,
    router_name,
)
from gatewayd_engine.model.moe import MixtureOfExperts, WithSharedExpert
from gatewayd_engine.model.parts import Gate, LayerParts
from gatewayd_engine.model.router import Router, SharedGate
from gatewayd_engine.model.spec import ModelSpec
from gatewayd_hooks.quantization import Weight

_log = logging.getLogger(__name__)

_PARTS = ("gate_proj", "up_proj", "down_proj")


class MlpBuilder:
    """Builder of the feed-forward parts of a decoder's layers.

    Args:
        spec: of the model.
        linears: builder of its matrices.
        parts: factory of operations for the device.

    Attributes:
        gates: gated activations built so far.
        is_capturable: see ``Decoder``; for the layers built so far.
    """

    def __init__(self, spec: ModelSpec, linears: LinearBuilder, parts: LayerParts) -> None:
        self.gates: list[Gate] = []
        self.is_capturable = True
        self._spec = spec
        self._linears = linears
        self._parts = parts

    def mlp(self, index: int) -> Mlp:
        """Build the feed-forward part of a layer."""
        moe = self._spec.moe
        if moe is None or not moe.layers[index]:
            return self._feed_forward(mlp_prefix(self._spec, f"model.layers.{index}"), _PARTS)
        routed = self._routed(index, moe)
        if moe.shared is None:
            return routed
        return WithSharedExpert(
            routed, self.shared_expert(index, moe.shared), self.shared_gate(index, moe.shared)
        )

    def _routed(self, index: int, moe: MoeSpec) -> Mlp:
        """Build the experts of a layer that its router chooses from."""
        # One kernel for all experts where their format allows it, else one expert at a time.
        grouped = self._grouped(index, moe)
        if grouped is not None:
            return grouped
        self.is_capturable = False
        experts = [self.expert(index, number) for number in range(moe.num_experts)]
        return MixtureOfExperts(self.router(index), experts)

    def router(self, index: int) -> Router:
        """Build the expert router of a layer.

        Raises:
            ValueError: the model has no experts.
        """
        moe = self._spec.moe
        if moe is None:
            raise ValueError(f"layer {index} has no experts")
        name, routing, correction = (
            router_name(self._spec, self._expert_prefix(index)),
            moe.routing,
            None,
        )
        linear = self._linears.small(name, in_float32=routing.in_float32)
        if routing.has_correction:
            correction = self._linears.weights.float32(f"{name}.{CORRECTION}")
            self._linears.nbytes += correction.nbytes
        return Router(linear, routing, correction)

    def expert(self, index: int, number: int) -> FeedForward:
        """Build one of the experts of a layer."""
        prefix = f"{self._expert_prefix(index)}.experts.{number}"
        gate = None if self._spec.moe is None else self._spec.moe.gate
        return self._feed_forward(prefix, expert_parts(self._spec), gate)

    def shared_expert(self, index: int, shared: SharedExpert) -> FeedForward:
        """Build the shared expert of a layer."""
        return self._feed_forward(f"{self._expert_prefix(index)}.{shared.name}", _PARTS)

    def shared_gate(self, index: int, shared: SharedExpert) -> SharedGate | None:
        """Build the gate of a layer's shared expert; None if it has none."""
        if shared.gate is None:
            return None
        return SharedGate(self._linears.small(f"{self._expert_prefix(index)}.{shared.gate}"))

    def _grouped(self, index: int, moe: MoeSpec) -> Mlp | None:
        """Build a layer's experts as grouped matrix products; None if ``parts`` cannot."""
        parts, experts = self._parts.experts, moe.num_experts
        if parts is None:
            return None
        hidden, inner = self._spec.hidden_size, moe.intermediate_size
        sizes = ((2 * inner, hidden), (hidden, inner))
        stacks: list[Stack] = []
        # Each matrix is copied to its stack before the next one is read.
        for number in range(experts):
            for part, weight in enumerate(self._expert_weights(index, number)):
                form = parts.form(weight, self._linears.weights.dtype)
                if form is not None and not number:
                    stacks.append(parts.stack(form, experts, *sizes[part]))
                if form is None or not stacks[part].set_expert(number, form):
                    what = describe_weight(weight) if form is None else "of several formats"
                    self._warn_ungrouped(index, what)
                    # Read again one by one, from the first on: experts already stacked are dropped.
                    return None
        gate_up, down = stacks
        if moe.has_bias:
            biases = [self._expert_biases(index, number) for number in range(experts)]
            gate_up.bias, down.bias = (torch.stack(each) for each in zip(*biases, strict=True))
        self._linears.nbytes += gate_up.nbytes + down.nbytes
        act: str | ClampedAct = self._spec.activation
        if moe.gate is not None:
            act = ClampedAct(moe.gate.limit, moe.gate.sharpness)
        return parts.mixture(self.router(index), gate_up, down, act, self._linears.weights.dtype)

    def _expert_weights(self, index: int, number: int) -> Iterator[Weight]:
        """Yield the matrices of an expert, gate and up fused, on the device."""
        prefix = f"{self._expert_prefix(index)}.experts.{number}"
        gate, up, down = expert_parts(self._spec)
        joined = self._linears.matrix_names(prefix, "gate_up_proj", (gate, up))
        for name, names in (("gate_up_proj", joined), (down, [f"{prefix}.{down}"])):
            yield self._linears.settled(
                self._linears.quantized(f"{prefix}.{name}", self._linears.read_joined(names))
            )

    def _expert_biases(self, index: int, number: int) -> list[torch.Tensor]:
        """Read the biases of an expert's matrices, gate and up fused, to the device."""
        prefix = f"{self._expert_prefix(index)}.experts.{number}"
        gate, up, down = expert_parts(self._spec)
        joined = self._linears.matrix_names(prefix, "gate_up_proj", (gate, up))
        found = [self._linears.read_bias(names) for names in (joined, [f"{prefix}.{down}"])]
        return [bias.to(self._linears.device) for bias in found if bias is not None]

    def _warn_ungrouped(self, index: int, what: str) -> None:
        """Log once why experts run one at a time."""
        # True until the first such layer has been built.
        if self.is_capturable:
            _log.warning(
                "experts of layer %d are %s: experts run one at a time, the host waits for the"
                " device in each of their layers, and steps are not captured",
                *(index, what),
            )

    def _expert_prefix(self, index: int) -> str:
        return expert_prefix(self._spec, f"model.layers.{index}", self._linears.weights)

    def _feed_forward(
        self, prefix: str, names: tuple[str, str, str], clamped: ClampedGate | None = None
    ) -> FeedForward:
        gate, up, down = names
        joined = self._linears.matrix_names(prefix, "gate_up_proj", (gate, up))
        # No product applies a clamped activation.
        act = None if clamped is not None else self._spec.activation
        gate_up = self._linears.packed(
            f"{prefix}.gate_up_proj",
            self._linears.read_joined(joined),
            self._linears.read_bias(joined),
            activation=act,
        )
        back = self._linears.linear(f"{prefix}.{down}")
        if clamped is not None:
            gated: Gate = ClampedGated(clamped.limit, clamped.sharpness)
        else:
            gated = self._parts.gate(self._spec.activation, back, gate_up)
        self.gates.append(gated)
        return FeedForward(gate_up, back, gated)
