"""Quantization jobs and their events, exchanged as JSON between processes. Imports no torch."""

from __future__ import annotations

import msgspec

from gatewayd_engine.process.config import StrategyChoice

REPORT = "gatewayd_quantize.json"
"""Report stored with the weights: their origin and the quantization error of each matrix."""


class QuantizeJob(msgspec.Struct, frozen=True):
    """Job to quantize one checkpoint."""

    model: str
    """Folder of the source checkpoint."""
    out: str
    """Folder to be written."""
    quantizer: StrategyChoice
    samples: list[list[int]]
    """Token ids of calibration texts; empty to round to nearest."""
    skip: list[str] = []
    """Globs of names of matrices that are not quantized."""
    threads: int | None = None
    """Threads of torch; None lets the engine choose."""
    resume: bool = False
    """Continue an earlier run that was interrupted."""
    force: bool = False
    """Start over, and replace the output of an earlier run."""


class HashingProgress(msgspec.Struct, frozen=True, tag="reading"):
    """Progress event: fraction of the model that was hashed; only sent for large models."""

    done: float


class QuantizeStarted(msgspec.Struct, frozen=True, tag="began"):
    """Event: quantization starts, with some layers done by an earlier run."""

    done: int
    layers: int


class CalibrationStarted(msgspec.Struct, frozen=True, tag="calibrating"):
    """Event: the quantizer calibrates on a number of tokens."""

    tokens: int


class QuantizeAdvanced(msgspec.Struct, frozen=True, tag="advanced"):
    """Progress event: number of layers done, with fractions."""

    done: float


class Fitted(msgspec.Struct, frozen=True):
    """Quantization error of a matrix."""

    matrix: str
    lost: float
    """Relative mean square error of its output."""
    nearest: float
    """The same error with rounding to nearest."""
    few: int | None = None
    """Calibration tokens it saw, if too few so that it was rounded to nearest; else None."""


class LayerWritten(msgspec.Struct, frozen=True, tag="kept"):
    """Event: a layer is quantized and written to disk."""

    layer: int
    matrices: list[Fitted]


class CheckpointWritten(msgspec.Struct, frozen=True, tag="written"):
    """Event: the checkpoint is complete."""

    matrices: list[Fitted]
    """All quantized matrices."""
    weight_bytes: int
    source_bytes: int


class QuantizeFailed(msgspec.Struct, frozen=True, tag="failed"):
    """Event: the job failed, with the reason in a sentence."""

    reason: str


Event = (
    HashingProgress
    | QuantizeStarted
    | CalibrationStarted
    | QuantizeAdvanced
    | LayerWritten
    | CheckpointWritten
    | QuantizeFailed
)
