"""Latent attention (MLA) settings of a model, read from config.json. Imports no torch."""

from __future__ import annotations

import math
from dataclasses import dataclass

from gatewayd_engine.model.config.rope import yarn_magnitude
from gatewayd_engine.model.json_fields import JsonFields, SpecError

NORM_EPS = 1e-6
"""Of the norms of latents, whatever ``rms_norm_eps`` is. Source: DeepSeek's releases."""


@dataclass(frozen=True, slots=True)
class LatentSpec:
    """Sizes of multi-head latent attention. Source: DeepSeek-V2, arXiv 2405.04434.

    Attributes:
        query_rank: size of a query's latent; None if queries are projected directly.
        rank: size of the latent that keys and values are computed from.
        nope_dim: numbers of a query head and of a key that are not rotated, computed from latents.
        rope_dim: rotated numbers of a query head, and of the key that all heads share.
        value_dim: size of a value.
        are_pairs_adjacent: whether weights are stored with the two rows of each rotated pair next
            to each other, rather than half of the rotated rows apart.
    """

    query_rank: int | None
    rank: int
    nope_dim: int
    rope_dim: int
    value_dim: int
    are_pairs_adjacent: bool

    @property
    def key_dim(self) -> int:
        """Numbers of a query head, and of a key, before the latent takes their place."""
        return self.nope_dim + self.rope_dim

    @property
    def record_dim(self) -> int:
        """Numbers in the KV cache per token and layer: the latent, then the shared rotated key."""
        return self.rank + self.rope_dim


def read_latent(config: JsonFields) -> LatentSpec:
    """Read the sizes of latent attention.

    Raises:
        SpecError: one is missing, or odd where numbers are rotated in pairs.
    """
    for key in ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim"):
        if config.size(key) % 2:
            raise SpecError(f"{config.where}: {key} must be even, not {config.size(key)}")
    return LatentSpec(
        query_rank=config.optional_size("q_lora_rank"),
        rank=config.size("kv_lora_rank"),
        nope_dim=config.size("qk_nope_head_dim"),
        rope_dim=config.size("qk_rope_head_dim"),
        value_dim=config.size("v_head_dim"),
        are_pairs_adjacent=config.flag("rope_interleave", True),
    )


def score_scale(config: JsonFields, latent: LatentSpec) -> float:
    """Return the factor on scores before softmax; scaled rotary embedding sharpens attention."""
    scale = 1 / math.sqrt(latent.key_dim)
    given = config.inner("rope_parameters") or config.inner("rope_scaling") or JsonFields({}, "")
    # ``type`` is the older name of the field.
    is_scaled = given.text("rope_type", given.text("type", "default")) != "default"
    # Some releases write 0 for none.
    if not is_scaled or not given.raw("mscale_all_dim"):
        return scale
    return scale * yarn_magnitude(given.number("factor"), given.number("mscale_all_dim")) ** 2
