"""Quantization of a layer in parts: dense layers as a whole, MoE layers expert by expert."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby

import torch

from gatewayd_engine.model.config.moe import MoeSpec, SharedExpert
from gatewayd_engine.offline.quantize.calibration import Calibration, FittedPart, Open, Stream
from gatewayd_engine.offline.quantize.input_groups import SHARED, InputGroup
from gatewayd_engine.offline.quantize.layers import Layers, LayerTensors
from gatewayd_engine.offline.quantize.quantizer import CheckpointQuantizer

_ROWS = 2048
"""Rows per batch that go through an expert."""


def fit(
    layers: Layers,
    writer: CheckpointQuantizer,
    index: int,
    groups: Sequence[InputGroup],
    stream: Stream,
    advance: Callable[[float], None],
) -> FittedPart:
    """Quantize a layer.

    Args:
        layers: of the model.
        writer: the quantizer.
        index: of the layer.
        groups: input groups of the layer.
        stream: residual stream before the layer; empty to round to nearest.
        advance: called with the fraction of the layer that is done.

    Raises:
        LoadError: the quantizer refuses a matrix, or returned an invalid weight.
    """
    moe = layers.checkpoint.spec.moe
    if moe is None or not moe.layers[index]:
        tensors = LayerTensors(layers.checkpoint)
        build = partial(layers.open, index)
        return Calibration(build, tensors, writer, stream, advance).run(groups)
    return _WithExperts(layers, writer, index, groups, advance).run(stream, moe)


class _WithExperts:
    """Quantizes a MoE layer, with one expert in float32 in memory at a time."""

    def __init__(
        self,
        layers: Layers,
        writer: CheckpointQuantizer,
        index: int,
        groups: Sequence[InputGroup],
        advance: Callable[[float], None],
    ) -> None:
        self._layers = layers
        self._writer = writer
        self._index = index
        # Groups are in the order of computation, so those of an expert are adjacent.
        by_expert = groupby(groups, key=lambda group: group.expert)
        self._groups = {number: list(found) for number, found in by_expert}
        self._count = max(1, len(groups))
        self._advance = advance
        self._done = 0

    def run(self, stream: Stream, moe: MoeSpec) -> FittedPart:
        """Quantize attention, then each expert on the tokens that are routed to it."""
        num_experts, shared = moe.num_experts, moe.shared
        build = partial(self._layers.open_before_experts, self._index)
        made = self._fit(build, None, stream)
        sizes = [len(x) for x in made.stream]
        # Without calibration texts no tokens are routed.
        if not sizes:
            for number in range(num_experts):
                self._fit_expert(number, made, [])
            if shared is not None:
                self._fit_shared(shared, made, [])
            return made
        after = torch.cat(made.stream)
        made.stream.clear()
        norm, router = self._layers.routing(self._index)
        inputs, total = norm(after), torch.zeros_like(after)
        # Once for all tokens, before any expert is quantized.
        weights, chosen = router(inputs)
        for number in range(num_experts):
            rows, ranks = (chosen == number).nonzero(as_tuple=True)
            given, factors = inputs[rows], weights[rows, ranks].unsqueeze(-1)
            if moe.routing.weighs_inputs:
                given, factors = given * factors, torch.ones_like(factors)
            answers = self._fit_expert(number, made, list(torch.split(given, _ROWS)))
            # A token chooses an expert at most once, so no row is added to twice in one operation.
            total[rows] += torch.cat(answers) * factors
        if shared is not None:
            gate = self._layers.shared_gate(self._index, shared)
            whole = torch.cat(self._fit_shared(shared, made, list(torch.split(inputs, _ROWS))))
            total += whole if gate is None else whole * gate(inputs)
        norm_after = self._layers.norm_after_experts(self._index)
        after += total if norm_after is None else norm_after(total)
        return made._replace(stream=list(torch.split(after, sizes)))

    def _fit_expert(self, number: int, made: FittedPart, inputs: Stream) -> Stream:
        """Quantize an expert and return its outputs."""
        build = partial(self._layers.open_expert, self._index, number)
        return self._add(self._fit(build, number, inputs), made)

    def _fit_shared(self, shared: SharedExpert, made: FittedPart, inputs: Stream) -> Stream:
        """Quantize the shared expert and return its outputs, not yet weighted."""
        build = partial(self._layers.open_shared_expert, self._index, shared)
        return self._add(self._fit(build, SHARED, inputs), made)

    def _add(self, fitted: FittedPart, made: FittedPart) -> Stream:
        """Add an expert's weights to those of the layer, and return its outputs."""
        made.tensors.update(fitted.tensors)
        made.fits.extend(fitted.fits)
        return fitted.stream

    def _fit(self, build: Open, number: int | None, stream: Stream) -> FittedPart:
        groups, before = self._groups.get(number, []), self._done

        def advance(part: float) -> None:
            self._advance((before + part * len(groups)) / self._count)

        tensors = LayerTensors(self._layers.checkpoint)
        made = Calibration(build, tensors, self._writer, stream, advance).run(groups)
        self._done += len(groups)
        return made
