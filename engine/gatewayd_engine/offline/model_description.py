"""Description of a model by its backend, without weights. Messages of the job; no torch."""

from __future__ import annotations

import msgspec

from gatewayd_engine.process.config import EngineConfig


class DescriptionJob(msgspec.Struct, frozen=True):
    """Ask for the description of an engine's model."""

    config: EngineConfig


class ModelDescription(msgspec.Struct, frozen=True, tag="described"):
    """What an engine would serve.

    ``weight_bytes`` are those of float weights in ``dtype``, ``token_bytes`` is the KV cache of a
    token without a codec.
    """

    backend: str
    architecture: str
    dtype: str
    num_parameters: int
    weight_bytes: int
    token_bytes: int
    max_model_len: int


class ModelRefused(msgspec.Struct, frozen=True, tag="refused"):
    """No backend serves the model; ``reason`` is a sentence."""

    reason: str
