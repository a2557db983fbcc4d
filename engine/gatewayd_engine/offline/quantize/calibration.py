"""A part of a layer: what its matrices see, what a quantizer makes of them, what comes out."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import NamedTuple

import torch

from gatewayd_engine.model.loading.safetensors_headers import LoadError
from gatewayd_engine.model.weights import checked, dense
from gatewayd_engine.offline.quantize.activation_stats import ActivationStats, Enough, Inputs
from gatewayd_engine.offline.quantize.input_groups import InputGroup
from gatewayd_engine.offline.quantize.job import Fitted
from gatewayd_engine.offline.quantize.layers import LayerTensors, Watch
from gatewayd_engine.offline.quantize.quantizer import CheckpointQuantizer
from gatewayd_engine.offline.quantize.scale_folding import Folding
from gatewayd_hooks.quantization import Calibrates, Fit, Matrix, Site

_log = logging.getLogger(__name__)

_LOSS_TOKENS = 1024
"""Of the sequences that a part is run over to see how far it is from what it was."""
_FEWEST = 128
"""Inputs that something can be learnt from; an expert may have seen fewer."""

Stream = list[torch.Tensor]
"""The residual stream of each sequence, float32 ``[n, hidden]``."""


Open = Callable[[LayerTensors, Watch | None], Callable[[torch.Tensor], torch.Tensor]]
"""Builds a part of what tensors there are now; it makes new rows of those of a sequence."""


class Made(NamedTuple):
    """What was made of a part.

    Attributes:
        tensors: of its matrices of few bits, and of norms that were divided, as they are to be
            stored, by their names there.
        told: what each matrix has lost.
        stream: behind the part.
    """

    tensors: dict[str, torch.Tensor]
    told: list[Fitted]
    stream: Stream


class Calibration:
    """Fits a part of a layer: all of one without experts, or its attention, or an expert.

    Args:
        build: the part.
        tensors: of which it is built.
        writer: what rounds.
        stream: before the part; of no sequence to round to the nearest.
        advance: told how much of the part is done.
    """

    def __init__(
        self,
        build: Open,
        tensors: LayerTensors,
        writer: CheckpointQuantizer,
        stream: Stream,
        advance: Callable[[float], None],
    ) -> None:
        self._build = build
        self._tensors = tensors
        self._writer = writer
        self._stream = stream
        self._advance = advance
        self._made = Made({}, [], [])

    def run(self, places: Sequence[InputGroup]) -> Made:
        """Fit all places.

        Raises:
            LoadError: the quantizer refuses a matrix, or what it made of one is no weight.
        """
        strategy = self._writer.calibrates
        if strategy is None or not self._stream:
            for done, place in enumerate(places, 1):
                self._put(place, self._nearest(place), None)
                self._advance(done / len(places))
            return self._made
        if strategy.propagates:
            for done, place in enumerate(places, 1):
                self._fit(place, strategy, self._seen([place], ends=True)[place.name])
                self._advance(done / len(places))
            return self._made._replace(stream=self._passed(self._stream))
        stream, seen = self._passed(self._stream), self._seen(places, ends=False)
        # From the last: rows that make an input are divided before they are rounded themselves.
        for done, place in enumerate(reversed(places), 1):
            self._fit(place, strategy, seen.pop(place.name))
            self._advance(done / len(places))
        return self._made._replace(stream=stream)

    def _passed(self, stream: Stream) -> Stream:
        """The stream behind the part as it is now."""
        part = self._build(self._tensors, None)
        return [part(x) for x in stream]

    def _seen(self, places: Sequence[InputGroup], *, ends: bool) -> dict[str, Inputs]:
        """What places see of all sequences."""
        tokens = sum(map(len, self._stream))
        seen = ActivationStats([place.name for place in places], tokens, ends=ends)
        part = self._build(self._tensors, seen)
        for x in self._stream:
            with suppress(Enough):
                part(x)
        return seen.inputs

    def _fit(self, place: InputGroup, strategy: Calibrates, inputs: Inputs) -> None:
        """Let the strategy fit a place, and divide what stands before it."""
        if inputs.count < _FEWEST:
            _log.warning(
                "%s: only %d calibration tokens; rounded to nearest",
                place.name,
                inputs.count,
            )
            self._put(place, self._nearest(place), None, few=inputs.count)
            return
        gram, weights, folding = inputs.gram, self._weights(place), None
        if place.before is not None and not strategy.propagates:
            folding = Folding(self._tensors.checkpoint, place.before, self._tensors)
        site = Site(
            matrices=place.matrices,
            weights=tuple(weights),
            inputs=inputs.rows,
            gram=gram,
            loss=_gram_loss(weights, gram) if place.is_alone else self._layer_loss(place),
            foldable=None if folding is None else folding.foldable,
        )
        with _named(place.matrices[0]):
            fit = strategy.fit(site)
        self._put(place, fit, gram)
        if fit.factors is None:
            return
        if folding is None or place.before is None:
            raise LoadError(f"{place.name}: its inputs were divided, and may not be")
        norm = folding.apply(fit.factors)
        if norm is not None:
            self._made.tensors[place.before.name] = norm

    def _put(
        self, place: InputGroup, fit: Fit, gram: torch.Tensor | None, few: int | None = None
    ) -> None:
        """Let what was made of a place's matrices take their places, and tell what they lost."""
        nearest = self._nearest(place)
        for matrix, before, made, plain in zip(
            place.matrices, self._weights(place), fit.weights, nearest.weights, strict=True
        ):
            with _named(matrix):
                after = dense(checked(matrix, made))
            self._tensors.put(f"{matrix.name}.weight", after)
            self._made.tensors.update(self._writer.pack(matrix, made))
            effective = after if fit.factors is None else after / fit.factors
            lost, nearest_lost = (_lost(before, one, gram) for one in (effective, dense(plain)))
            self._made.told.append(Fitted(matrix.name, lost, nearest_lost, few))

    def _nearest(self, place: InputGroup) -> Fit:
        made = []
        for matrix, weight in zip(place.matrices, self._weights(place), strict=True):
            with _named(matrix):
                made.append(self._writer.strategy.nearest(matrix, weight))
        return Fit(tuple(made))

    def _weights(self, place: InputGroup) -> list[torch.Tensor]:
        return [self._tensors.take(f"{matrix.name}.weight") for matrix in place.matrices]

    def _layer_loss(self, place: InputGroup) -> Callable[[Sequence[torch.Tensor]], float]:
        """How far the part is from what it is now, with other weights in a place."""
        some: Stream = []
        for x in self._stream:
            if sum(map(len, some)) < _LOSS_TOKENS:
                some.append(x)
        whole = torch.cat(self._passed(some))
        now = self._weights(place)

        def loss(weights: Sequence[torch.Tensor]) -> float:
            try:
                self._place(place, weights)
                return float((torch.cat(self._passed(some)) - whole).square().mean())
            finally:
                self._place(place, now)

        return loss

    def _place(self, place: InputGroup, weights: Sequence[torch.Tensor]) -> None:
        for matrix, weight in zip(place.matrices, weights, strict=True):
            self._tensors.put(f"{matrix.name}.weight", weight)


def _gram_loss(
    weights: Sequence[torch.Tensor], gram: torch.Tensor
) -> Callable[[Sequence[torch.Tensor]], float]:
    """How far what matrices make of their inputs is from what it was."""
    rows, single = sum(map(len, weights)), gram.float()

    def loss(others: Sequence[torch.Tensor]) -> float:
        pairs = zip(others, weights, strict=True)
        return sum(_energy(other - weight, single) for other, weight in pairs) / rows

    return loss


def _lost(before: torch.Tensor, after: torch.Tensor, gram: torch.Tensor | None) -> float:
    """The part of what a matrix makes of its inputs that is lost; of inputs like noise without."""
    single = None if gram is None else gram.float()
    return _energy(after - before, single) / max(_energy(before, single), 1e-30)


def _energy(weight: torch.Tensor, gram: torch.Tensor | None) -> float:
    made = weight if gram is None else weight @ gram
    return float((made * weight).sum(dtype=torch.float64))


@contextmanager
def _named(matrix: Matrix) -> Iterator[None]:
    """Sentences of a plugin begin with the name of the matrix."""
    try:
        yield
    except LoadError:
        raise
    except ValueError as error:
        raise LoadError(f"{matrix.name}: {error}") from error
    except Exception as error:
        raise LoadError(f"{matrix.name}: {type(error).__name__}: {error}") from error
