"""A layer in parts: one without experts whole, else what all tokens pass, then each expert."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby

import torch

from gatewayd_engine.offline.quantize.calibration import Calibration, Made, Open, Stream
from gatewayd_engine.offline.quantize.input_groups import InputGroup
from gatewayd_engine.offline.quantize.layers import Layers, LayerTensors
from gatewayd_engine.offline.quantize.quantizer import CheckpointQuantizer

_ROWS = 2048
"""Inputs that go through an expert at once."""


def fit(
    layers: Layers,
    writer: CheckpointQuantizer,
    index: int,
    places: Sequence[InputGroup],
    stream: Stream,
    advance: Callable[[float], None],
) -> Made:
    """Fit a layer.

    Args:
        layers: of the model.
        writer: what rounds.
        index: of the layer.
        places: of the layer.
        stream: before it; of no sequence to round to the nearest.
        advance: told how much of the layer is done.

    Raises:
        LoadError: the quantizer refuses a matrix, or what it made of one is no weight.
    """
    moe = layers.checkpoint.spec.moe
    if moe is None or not moe.layers[index]:
        tensors = LayerTensors(layers.checkpoint)
        build = partial(layers.open, index)
        return Calibration(build, tensors, writer, stream, advance).run(places)
    return _WithExperts(layers, writer, index, places, advance).run(stream, moe.num_experts)


class _WithExperts:
    """Fits a layer with experts; of these there is one in float32 at a time."""

    def __init__(
        self,
        layers: Layers,
        writer: CheckpointQuantizer,
        index: int,
        places: Sequence[InputGroup],
        advance: Callable[[float], None],
    ) -> None:
        self._layers = layers
        self._writer = writer
        self._index = index
        by_expert = groupby(places, key=lambda place: place.expert)
        self._places = {number: list(found) for number, found in by_expert}
        self._count = max(1, len(places))
        self._advance = advance
        self._done = 0

    def run(self, stream: Stream, num_experts: int) -> Made:
        """Fit all: experts for those tokens of the stream that come to them."""
        build = partial(self._layers.open_before_experts, self._index)
        made = self._fit(build, None, stream)
        sizes = [len(x) for x in made.stream]
        if not sizes:
            for number in range(num_experts):
                self._fit_expert(number, made, [])
            return made
        after = torch.cat(made.stream)
        made.stream.clear()
        norm, router = self._layers.routing(self._index)
        inputs = norm(after)
        weights, chosen = router(inputs)
        for number in range(num_experts):
            rows, places = (chosen == number).nonzero(as_tuple=True)
            answers = self._fit_expert(number, made, list(torch.split(inputs[rows], _ROWS)))
            after[rows] += torch.cat(answers) * weights[rows, places].unsqueeze(-1)
        return made._replace(stream=list(torch.split(after, sizes)))

    def _fit_expert(self, number: int, made: Made, inputs: Stream) -> Stream:
        """Fit an expert, and answer with what it makes of its inputs."""
        build = partial(self._layers.open_expert, self._index, number)
        fitted = self._fit(build, number, inputs)
        made.tensors.update(fitted.tensors)
        made.told.extend(fitted.told)
        return fitted.stream

    def _fit(self, build: Open, number: int | None, stream: Stream) -> Made:
        places, before = self._places.get(number, []), self._done

        def advance(part: float) -> None:
            self._advance((before + part * len(places)) / self._count)

        tensors = LayerTensors(self._layers.checkpoint)
        made = Calibration(build, tensors, self._writer, stream, advance).run(places)
        self._done += len(places)
        return made
