"""What is to be quantized, and what is told of it: JSON between two processes. Imports no torch."""

from __future__ import annotations

import msgspec

from gatewayd_engine.process.config import StrategyChoice

REPORT = "gatewayd_quantize.json"
"""Beside the weights: what they were made of, and what each matrix has lost."""


class QuantizeJob(msgspec.Struct, frozen=True):
    """One checkpoint, and what is to be made of it."""

    model: str
    """Its folder."""
    out: str
    """The folder to be written."""
    quantizer: StrategyChoice
    samples: list[list[int]]
    """Tokens of texts to calibrate on; none to round to the nearest."""
    skip: list[str] = []
    """Globs of names of matrices that stay as they are."""
    threads: int | None = None
    """torch's; None lets the engine choose."""
    resume: bool = False
    """Go on with what an earlier run has left."""
    force: bool = False
    """Begin anew, and take the place of what an earlier run has written."""


class Reading(msgspec.Struct, frozen=True, tag="reading"):
    """So much of the model was looked at, to know it again; told of large ones."""

    done: float


class Began(msgspec.Struct, frozen=True, tag="began"):
    """So many layers are done already."""

    done: int
    layers: int


class Calibrating(msgspec.Struct, frozen=True, tag="calibrating"):
    """The quantizer looks at so many tokens of texts."""

    tokens: int


class QuantizeAdvanced(msgspec.Struct, frozen=True, tag="advanced"):
    """So much of all layers is done."""

    done: float


class Fitted(msgspec.Struct, frozen=True):
    """What became of a matrix."""

    matrix: str
    lost: float
    """Of what it makes of its inputs: the mean square of the difference beside its own."""
    nearest: float
    """The same if it were rounded to the nearest."""
    few: int | None = None
    """Tokens that it saw, where they are too few and it is rounded to the nearest; None if not."""


class LayersKept(msgspec.Struct, frozen=True, tag="kept"):
    """A layer is done, and written down."""

    layer: int
    matrices: list[Fitted]


class CheckpointWritten(msgspec.Struct, frozen=True, tag="written"):
    """The checkpoint is there."""

    matrices: list[Fitted]
    """All that are of few bits."""
    weight_bytes: int
    source_bytes: int


class QuantizeFailed(msgspec.Struct, frozen=True, tag="failed"):
    """It cannot be made, in a sentence."""

    reason: str


Event = (
    Reading
    | Began
    | Calibrating
    | QuantizeAdvanced
    | LayersKept
    | CheckpointWritten
    | QuantizeFailed
)
