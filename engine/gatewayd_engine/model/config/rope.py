"""Rotary embedding (RoPE) settings of a model, read from both forms of config.json."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gatewayd_engine.model.config.families import Family
from gatewayd_engine.model.json_fields import JsonFields, SpecError

KINDS = ("default", "linear", "dynamic", "llama3", "yarn", "longrope")
NONE = "none"
"""Kind of a layer without rotary embedding."""
_LAYER_TYPES = ("full_attention", "sliding_attention")


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """Rotary position embedding settings.

    Attributes:
        kind: one of ``KINDS``, or ``NONE``.
        theta: base of the wavelengths.
        rotary_dim: leading dimensions of each head that are rotated, even.
        magnitude: attention factor, multiplied with cosine and sine.
        factor: scaling factor of the context length.
        original_len: context length before scaling.
        low_freq_factor: of llama3.
        high_freq_factor: of llama3.
        beta_fast: of yarn.
        beta_slow: of yarn.
        truncate: of yarn: round the corrected range outward.
        stretch: of longrope: factor per frequency; empty otherwise.
        max_len: context length that these frequencies support.
    """

    kind: str
    theta: float
    rotary_dim: int
    max_len: int
    magnitude: float = 1.0
    factor: float = 1.0
    original_len: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    stretch: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class QueryScale:
    """Growth of the queries with their position, in layers without rotary embedding.

    Attributes:
        interval: positions between two steps of the growth.
        factor: of the logarithm of their number.
    """

    interval: int
    factor: float


def read_query_scale(config: JsonFields, family: Family) -> QueryScale | None:
    """Read the growth of queries; None for none.

    Raises:
        SpecError: a value is none that it may be.
    """
    # Releases have a number here, of which transformers asks whether it is 0.
    tuning = config.raw("attn_temperature_tuning")
    grows = bool(tuning) if isinstance(tuning, int) else tuning is None
    if not family.grows_queries or not grows:
        return None
    return QueryScale(config.size("floor_scale", 8192), config.number("attn_scale", 0.1))


def read_rope(
    config: JsonFields, family: Family, head_dim: int, wanted_len: int | None
) -> RopeSpec:
    """Read the settings of layers that attend to all positions.

    They are in ``rope_parameters``, or in ``rope_scaling`` and ``rope_theta`` of older configs.

    Args:
        config: of config.json.
        family: of the model.
        head_dim: size of a head.
        wanted_len: configured context length. Longrope has two sets of factors, and cached keys
            cannot switch between them, so one is selected here: the short set, which is limited to
            the original context, unless a longer context is configured.

    Raises:
        SpecError: a kind or a value that is not supported.
    """
    given = _given(config)
    if family.local_theta is not None:
        given = given.inner("full_attention") or given
    else:
        for key in _LAYER_TYPES:
            if key in given:
                raise SpecError(f"{given.where} differs by layer ({key}); that is not supported")
    theta = given.number("rope_theta", config.number("rope_theta", family.rope_theta))
    part = config.number("partial_rotary_factor", family.rotated)
    rotary_dim = int(head_dim * given.number("partial_rotary_factor", part))
    if not 0 < rotary_dim <= head_dim or rotary_dim % 2:
        raise SpecError(
            f"{config.where}: {rotary_dim} of {head_dim} dimensions of a head would be rotated;"
            " that must be an even part of it"
        )
    return _read(config, given, theta, rotary_dim, wanted_len)


def read_layer_ropes(
    config: JsonFields,
    family: Family,
    rope: RopeSpec,
    windows: Sequence[int],
    rotated: Sequence[bool],
) -> tuple[RopeSpec, ...]:
    """Read the settings of each layer.

    Args:
        config: of config.json.
        family: of the model.
        rope: of layers that attend to all positions.
        windows: sliding window of each layer, 0 for all positions.
        rotated: whether each layer has a rotary embedding.

    Raises:
        SpecError: a kind or a value that is not supported.
    """
    local = rope
    if family.local_theta is not None:
        # Older configs have one set of parameters, which is that of the other layers.
        given = _given(config).inner("sliding_attention") or JsonFields({}, config.where)
        theta = config.number("rope_local_base_freq", family.local_theta or rope.theta)
        local = _read(config, given, given.number("rope_theta", theta), rope.rotary_dim, None)
    none = RopeSpec(NONE, rope.theta, rope.rotary_dim, rope.max_len)
    return tuple(
        (local if window else rope) if has_rope else none
        for window, has_rope in zip(windows, rotated, strict=True)
    )


def _given(config: JsonFields) -> JsonFields:
    return config.inner("rope_parameters") or config.inner("rope_scaling") or JsonFields({}, "")


def _read(
    config: JsonFields, given: JsonFields, theta: float, rotary_dim: int, wanted_len: int | None
) -> RopeSpec:
    # ``type`` is the older name of the field.
    kind = given.text("rope_type", given.text("type", "default"))
    # The first Phi-3 releases wrote these names for what is longrope there.
    if kind == "su" or (kind == "yarn" and "short_factor" in given):
        kind = "longrope"
    if kind not in KINDS:
        raise SpecError(
            f"{given.where}: rope type {kind!r} is not supported; supported are {', '.join(KINDS)}"
        )
    if theta <= 1:
        raise SpecError(f"{config.where}: rope_theta must be above 1, not {theta}")
    max_len = config.size("max_position_embeddings")
    match kind:
        case "linear":
            return RopeSpec(kind, theta, rotary_dim, max_len, factor=given.number("factor"))
        case "llama3":
            return RopeSpec(
                kind,
                theta,
                rotary_dim,
                max_len,
                factor=given.number("factor"),
                original_len=_original_len(config, given),
                low_freq_factor=given.number("low_freq_factor"),
                high_freq_factor=given.number("high_freq_factor"),
            )
        case "yarn":
            return _yarn(config, given, theta, rotary_dim)
        case "longrope":
            return _longrope(config, given, theta, rotary_dim, wanted_len)
        case _:
            # Dynamic scaling starts beyond max_position_embeddings, which is the limit here.
            return RopeSpec(kind, theta, rotary_dim, max_len)


def _original_len(config: JsonFields, given: JsonFields) -> int:
    key = "original_max_position_embeddings"
    # Phi-3 has it beside the RoPE settings, others among them.
    length = config.size(key, given.size(key, config.size("max_position_embeddings")))
    if length < 2:
        raise SpecError(f"{config.where}: {key} must be at least 2, not {length}")
    return length


def _yarn(config: JsonFields, given: JsonFields, theta: float, rotary_dim: int) -> RopeSpec:
    max_len, original_len = config.size("max_position_embeddings"), _original_len(config, given)
    factor = given.number("factor", max_len / original_len)
    magnitude = given.optional_number("attention_factor")
    if magnitude is None:
        mscale = given.optional_number("mscale")
        mscale_all_dim = given.optional_number("mscale_all_dim")
        # ``mscale`` is DeepSeek's extension; as in transformers, it counts only if both are set.
        magnitude = yarn_magnitude(factor, mscale if mscale and mscale_all_dim else 1.0)
        if mscale and mscale_all_dim:
            magnitude /= yarn_magnitude(factor, mscale_all_dim)
    return RopeSpec(
        "yarn",
        theta,
        rotary_dim,
        # Some releases leave max_position_embeddings at the original context.
        max(max_len, int(factor * original_len)),
        magnitude=magnitude,
        factor=factor,
        original_len=original_len,
        beta_fast=given.number("beta_fast", 32.0),
        beta_slow=given.number("beta_slow", 1.0),
        truncate=given.flag("truncate", True),
    )


def yarn_magnitude(factor: float, mscale: float) -> float:
    """Return the factor by which yarn enlarges rotated heads for a context ``factor`` as long."""
    return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0


def _longrope(
    config: JsonFields, given: JsonFields, theta: float, rotary_dim: int, wanted_len: int | None
) -> RopeSpec:
    max_len, original_len = config.size("max_position_embeddings"), _original_len(config, given)
    factor = given.number("factor", max_len / original_len)
    magnitude = given.optional_number("attention_factor")
    if magnitude is None:
        root = 1 + math.log(factor) / math.log(original_len) if factor > 1 else 1.0
        magnitude = math.sqrt(root)
    is_long = wanted_len is not None and wanted_len > original_len
    return RopeSpec(
        "longrope",
        theta,
        rotary_dim,
        max_len if is_long else min(max_len, original_len),
        magnitude=magnitude,
        factor=factor,
        original_len=original_len,
        stretch=given.numbers("long_factor" if is_long else "short_factor", rotary_dim // 2),
    )
