"""Calibrated quantization of a part of a layer: inputs, quantized weights, outputs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from gatewayd_engine.model.loading.safetensors_headers import LoadError
from gatewayd_engine.model.weights import dense, validated
from gatewayd_engine.offline.quantize.activation_stats import (
    ActivationStats,
    InputsCollected,
    InputStats,
)
from gatewayd_engine.offline.quantize.input_groups import InputGroup
from gatewayd_engine.offline.quantize.job import Fitted
from gatewayd_engine.offline.quantize.layers import LayerTensors, Watch
from gatewayd_engine.offline.quantize.quantizer import CheckpointQuantizer
from gatewayd_engine.offline.quantize.scale_folding import Folding
from gatewayd_hooks.quantization import Calibrates, Fit, Matrix, Site

_log = logging.getLogger(__name__)

_LOSS_TOKENS = 1024
"""Tokens, at least, on which the loss of a part is evaluated."""
_FEWEST = 128
"""Minimum number of input rows for calibration; an expert may see fewer."""

Stream = list[torch.Tensor]
"""The residual stream of each sequence, float32 ``[n, hidden]``."""


Open = Callable[[LayerTensors, Watch | None], Callable[[torch.Tensor], torch.Tensor]]
"""Builds a part from the current tensors; it maps the residual stream of a sequence."""


class FittedPart(NamedTuple):
    """Result of quantizing a part.

    Attributes:
        tensors: quantized matrices, and norms that factors were folded into, by the names under
            which they are to be stored.
        fits: quantization error of each matrix.
        stream: residual stream after the part.
    """

    tensors: dict[str, torch.Tensor]
    fits: list[Fitted]
    stream: Stream


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Calibration:
    """Quantizes a part of a layer: a whole dense layer, or a MoE layer's attention or an expert.

    Args:
        build: builds the part.
        tensors: current tensors of the part; quantized ones replace them.
        writer: the quantizer.
        stream: residual stream before the part; empty to round to nearest.
        advance: called with the fraction of the part that is done.
    """

    _build: Open
    _tensors: LayerTensors
    _writer: CheckpointQuantizer
    _stream: Stream
    _advance: Callable[[float], None]
    _fitted: FittedPart = field(default_factory=lambda: FittedPart({}, [], []))

    def run(self, groups: Sequence[InputGroup]) -> FittedPart:
        """Quantize the matrices of all input groups.

        Raises:
            LoadError: the quantizer refuses a matrix, or returned an invalid weight.
        """
        strategy = self._writer.calibrates
        # Without calibration: round to nearest.
        if strategy is None or not self._stream:
            for done, group in enumerate(groups, 1):
                self._apply_fit(group, self._nearest(group), None)
                self._advance(done / len(groups))
            return self._fitted
        # In the order of computation: inputs come from matrices that are quantized, as for GPTQ.
        if strategy.propagates:
            for done, group in enumerate(groups, 1):
                self._fit(group, strategy, self._seen([group], ends=True)[group.name])
                self._advance(done / len(groups))
            return self._fitted._replace(stream=self._passed(self._stream))
        # All inputs come from the unquantized part, as for AWQ: collect them before it is changed.
        stream, seen = self._passed(self._stream), self._seen(groups, ends=False)
        # Backwards, so that factors are folded into a matrix before it is quantized itself.
        for done, group in enumerate(reversed(groups), 1):
            # Popped, to release a Gram matrix once it has been used.
            self._fit(group, strategy, seen.pop(group.name))
            self._advance(done / len(groups))
        return self._fitted._replace(stream=stream)

    def _passed(self, stream: Stream) -> Stream:
        """Run the part with its current tensors over the stream."""
        part = self._build(self._tensors, None)
        return [part(x) for x in stream]

    def _seen(self, groups: Sequence[InputGroup], *, ends: bool) -> dict[str, InputStats]:
        """Collect the inputs of groups over all sequences."""
        tokens = sum(map(len, self._stream))
        seen = ActivationStats([group.name for group in groups], tokens, ends=ends)
        part = self._build(self._tensors, seen)
        for x in self._stream:
            # Raised after the group's input, to skip the rest of the part.
            with suppress(InputsCollected):
                part(x)
        return seen.inputs

    def _fit(self, group: InputGroup, strategy: Calibrates, inputs: InputStats) -> None:
        """Calibrate a group, and fold the factors of its fit into what produces its input."""
        if inputs.count < _FEWEST:
            _log.warning(
                "%s: only %d calibration tokens; rounded to nearest",
                group.name,
                inputs.count,
            )
            self._apply_fit(group, self._nearest(group), None, few=inputs.count)
            return
        gram, weights, folding = inputs.gram, self._weights(group), None
        # With propagation the preceding matrix is quantized already, and absorbs no factors.
        if group.before is not None and not strategy.propagates:
            folding = Folding(self._tensors.checkpoint, group.before, self._tensors)
        site = Site(
            matrices=group.matrices,
            weights=tuple(weights),
            inputs=inputs.rows,
            gram=gram,
            loss=_gram_loss(weights, gram) if group.is_alone else self._layer_loss(group),
            foldable=None if folding is None else folding.foldable,
        )
        with _named(group.matrices[0]):
            fit = strategy.fit(site)
        self._apply_fit(group, fit, gram)
        if fit.factors is None:
            return
        if folding is None or group.before is None:
            raise LoadError(f"{group.name}: the fit has factors, but they cannot be folded here")
        norm = folding.apply(fit.factors)
        if norm is not None:
            self._fitted.tensors[group.before.name] = norm

    def _apply_fit(
        self, group: InputGroup, fit: Fit, gram: torch.Tensor | None, few: int | None = None
    ) -> None:
        """Replace a group's matrices by their quantized ones, and record the errors."""
        # Before the loop, which replaces the weights.
        nearest = self._nearest(group)
        for matrix, before, made, plain in zip(
            group.matrices, self._weights(group), fit.weights, nearest.weights, strict=True
        ):
            with _named(matrix):
                after = dense(validated(matrix, made))
            self._tensors.replace(f"{matrix.name}.weight", after)
            self._fitted.tensors.update(self._writer.pack(matrix, made))
            # The matrix expects divided inputs: with the original ones it is equivalent to this
            # weight.
            effective = after if fit.factors is None else after / fit.factors
            lost, nearest_lost = (_lost(before, one, gram) for one in (effective, dense(plain)))
            self._fitted.fits.append(Fitted(matrix.name, lost, nearest_lost, few))

    def _nearest(self, group: InputGroup) -> Fit:
        made = []
        for matrix, weight in zip(group.matrices, self._weights(group), strict=True):
            with _named(matrix):
                made.append(self._writer.strategy.nearest(matrix, weight))
        return Fit(tuple(made))

    def _weights(self, group: InputGroup) -> list[torch.Tensor]:
        return [self._tensors.tensor(f"{matrix.name}.weight") for matrix in group.matrices]

    def _layer_loss(self, group: InputGroup) -> Callable[[Sequence[torch.Tensor]], float]:
        """Return a function of a group's weights: mean square change of the part's output."""
        some: Stream = []
        for x in self._stream:
            # Whole sequences, because attention needs them.
            if sum(map(len, some)) < _LOSS_TOKENS:
                some.append(x)
        # The output with current weights: groups that follow in the part may be quantized already.
        whole = torch.cat(self._passed(some))
        now = self._weights(group)

        def loss(weights: Sequence[torch.Tensor]) -> float:
            try:
                self._replace_weights(group, weights)
                return float((torch.cat(self._passed(some)) - whole).square().mean())
            finally:
                # Also if the part raises: later groups compute with these weights.
                self._replace_weights(group, now)

        return loss

    def _replace_weights(self, group: InputGroup, weights: Sequence[torch.Tensor]) -> None:
        for matrix, weight in zip(group.matrices, weights, strict=True):
            self._tensors.replace(f"{matrix.name}.weight", weight)


def _gram_loss(
    weights: Sequence[torch.Tensor], gram: torch.Tensor
) -> Callable[[Sequence[torch.Tensor]], float]:
    """Return a function of weights: mean square change of the matrices' outputs."""
    rows, single = sum(map(len, weights)), gram.float()

    def loss(others: Sequence[torch.Tensor]) -> float:
        pairs = zip(others, weights, strict=True)
        return sum(_energy(other - weight, single) for other, weight in pairs) / rows

    return loss


def _lost(before: torch.Tensor, after: torch.Tensor, gram: torch.Tensor | None) -> float:
    """Compute the relative squared error of a matrix's output; for white noise without ``gram``."""
    single = None if gram is None else gram.float()
    return _energy(after - before, single) / max(_energy(before, single), 1e-30)


def _energy(weight: torch.Tensor, gram: torch.Tensor | None) -> float:
    made = weight if gram is None else weight @ gram
    return float((made * weight).sum(dtype=torch.float64))


@contextmanager
def _named(matrix: Matrix) -> Iterator[None]:
    """Turn a plugin's exceptions into ``LoadError`` with the name of the matrix."""
    try:
        yield
    except LoadError:
        raise
    except ValueError as error:
        raise LoadError(f"{matrix.name}: {error}") from error
    except Exception as error:
        raise LoadError(f"{matrix.name}: {type(error).__name__}: {error}") from error
