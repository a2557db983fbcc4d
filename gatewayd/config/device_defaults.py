"""Defaults that depend on the device: device selection and batch sizes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from gatewayd.config.tables import Config, EngineTable

_GPU = Path("/dev/nvidia0")
_FOR_A_CPU = (64, 512)
_FOR_A_GPU = (512, 8192)
"""Sequences and tokens per step: larger batches fill a GPU, and only add latency on a CPU."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Device and batch sizes of an engine.

    Attributes:
        device: ``cpu``, ``cuda`` or ``cuda:N``.
        max_running: maximum sequences in the batch.
        max_batch_tokens: maximum tokens per step.
    """

    device: str
    max_running: int
    max_batch_tokens: int


def sizes(engine: EngineTable) -> Sizes:
    """The configured values, with the device's defaults for the rest."""
    device = engine.device
    if device == "auto":
        device = "cuda" if has_gpu() else "cpu"
    running, tokens = _FOR_A_GPU if device.startswith("cuda") else _FOR_A_CPU
    return Sizes(device, engine.max_running or running, engine.max_batch_tokens or tokens)


def limit_of(config: Config, table: str, name: str) -> Any:  # noqa: ANN401 - a number
    """The effective value of a limit."""
    if name == "max_batch_tokens":
        return sizes(config.engine).max_batch_tokens
    return getattr(getattr(config, table), name)


@cache
def has_gpu() -> bool:
    """Whether there is a GPU that the installed torch can use, without importing it."""
    # ``+cpu`` is the local version of torch's wheels for CPUs.
    return _GPU.exists() and not metadata.version("torch").endswith("+cpu")
