"""Quality jobs and their events, exchanged as JSON between processes. Imports no torch."""

from __future__ import annotations

import msgspec

from gatewayd_engine.process.config import EngineConfig


class QualityScheme(msgspec.Struct, frozen=True):
    """A named engine configuration to be measured."""

    name: str
    config: EngineConfig


class Sample(msgspec.Struct, frozen=True):
    """Token ids of a text, at least two."""

    kind: str
    ids: list[int]
    prompt: int = 0
    """Leading tokens that are the prompt and not scored; KV compression decodes the others."""


class QualityJob(msgspec.Struct, frozen=True):
    """Schemes and texts for one process to measure."""

    reference: QualityScheme | None
    """Scheme that the others are compared with; None for perplexity alone."""
    schemes: list[QualityScheme]
    samples: list[Sample]


class QualityAdvanced(msgspec.Struct, frozen=True, tag="advanced"):
    """Progress event: number of texts of a scheme that are done."""

    scheme: int
    done: int


class QualityFigures(msgspec.Struct, frozen=True):
    """Scores of a scheme on the texts of a kind."""

    tokens: int
    """Number of scored tokens."""
    perplexity: float
    reference_perplexity: float | None = None
    agreement: float | None = None
    """Fraction of tokens for which scheme and reference have the same most likely token."""
    kl_mean: float | None = None
    """Kullback-Leibler divergence from the reference's probabilities, in nats per token."""
    kl_p99: float | None = None


class SchemeMeasured(msgspec.Struct, frozen=True, tag="measured"):
    """Event: a scheme has been measured."""

    scheme: int
    weight_bytes: int
    kv_bytes_per_token: float
    """KV cache bytes per token, after compaction if there is one."""
    decode_tokens_per_second: float
    """Decoding speed of a single sequence."""
    kinds: dict[str, QualityFigures]
    kv_read: float | None = None
    """Fraction of keys and values that decoding reads, with a KV compression."""
    note: str = ""
    """Caveat about the figures; empty for none."""


class SchemeUnusable(msgspec.Struct, frozen=True, tag="unusable"):
    """Event: a scheme cannot be measured."""

    scheme: int
    reason: str


class QualityFailed(msgspec.Struct, frozen=True, tag="failed"):
    """Event: nothing can be measured, because the reference failed."""

    reason: str


Event = QualityAdvanced | SchemeMeasured | SchemeUnusable | QualityFailed
