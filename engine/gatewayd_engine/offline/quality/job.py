"""What is to be measured, and what is told of it: JSON between two processes. Imports no torch."""

from __future__ import annotations

import msgspec

from gatewayd_engine.process.config import EngineConfig


class QualityScheme(msgspec.Struct, frozen=True):
    """A way to serve a model."""

    name: str
    config: EngineConfig


class Sample(msgspec.Struct, frozen=True):
    """Tokens of a text, at least two."""

    kind: str
    ids: list[int]
    prompt: int = 0
    """Its first tokens, that are a prompt and not counted; a KV compression decodes the others."""


class QualityJob(msgspec.Struct, frozen=True):
    """Everything that one process measures."""

    reference: QualityScheme | None
    """What the others are compared with; None for perplexity alone."""
    schemes: list[QualityScheme]
    samples: list[Sample]


class QualityAdvanced(msgspec.Struct, frozen=True, tag="advanced"):
    """So many texts of a scheme are done."""

    scheme: int
    done: int


class QualityFigures(msgspec.Struct, frozen=True):
    """What a scheme makes of the texts of a kind."""

    tokens: int
    """That were predicted."""
    perplexity: float
    reference_perplexity: float | None = None
    agreement: float | None = None
    """The part of tokens where both think the same token the likeliest."""
    kl_mean: float | None = None
    """Kullback-Leibler divergence from the reference's probabilities, nats a token."""
    kl_p99: float | None = None


class Measured(msgspec.Struct, frozen=True, tag="measured"):
    """A scheme is done."""

    scheme: int
    weight_bytes: int
    kv_bytes_per_token: float
    """Bytes that are held; of a context that has been compacted, of what is left."""
    decode_tokens_per_second: float
    """Of one sequence alone."""
    kinds: dict[str, QualityFigures]
    kv_read: float | None = None
    """The part of keys and values that decoding reads, with a KV compression."""
    note: str = ""
    """What is to be known of the figures."""


class SchemeUnusable(msgspec.Struct, frozen=True, tag="unusable"):
    """A scheme cannot be used."""

    scheme: int
    reason: str


class QualityFailed(msgspec.Struct, frozen=True, tag="failed"):
    """Nothing can be measured: there is no reference."""

    reason: str


Event = QualityAdvanced | Measured | SchemeUnusable | QualityFailed
