"""Tables of further models, ``[models.NAME]``: what each overrides of the configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ByteSize, ConfigDict, Field

MODEL_NAME = r"^[A-Za-z0-9][A-Za-z0-9_.:/-]{0,255}$"

MIB = 1 << 20

EMBEDDED = "embedded:"
"""Prefix of paths that name an embedded model."""

ServedName = Annotated[str, Field(min_length=1, max_length=256)]
Overrides = dict[str, Any]
"""Keys of a table that a model sets differently; checked with the whole table."""


class ModelEntry(BaseModel):
    """One model of the catalogue; its tables override the configuration's of the same name."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)

    path: str = Field(min_length=1)
    served_names: list[ServedName] = Field(default=[], max_length=64)
    backend: str = Field(default="auto", pattern=r"^[a-z0-9_]+$")
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    max_model_len: int | None = Field(default=None, ge=1)
    dummy_weights: bool = False
    memory: ByteSize | None = Field(default=None, ge=MIB)
    pinned: bool = False
    preload: bool = True
    engine: Overrides = {}
    queue: Overrides = {}
    scheduler: Overrides = {}
    prefix_cache: Overrides = {}
    eviction: Overrides = {}
    preemption: Overrides = {}
    quantizer: Overrides = {}
    model_backend: Overrides = {}
    guide: Overrides = {}
    drafter: Overrides = {}
    spec_controller: Overrides = {}
    admission: Overrides = {}
    router: Overrides = {}
    executor: Overrides = {}
    tool_parser: Overrides = {}
    reasoning_parser: Overrides = {}
    logits_processor: Overrides = {}
    kv_tier: Overrides = {}
    kv_codec: Overrides = {}
    kv_compression: Overrides = {}


MODEL_KEYS = ("path", "backend", "dtype", "max_model_len", "dummy_weights")
"""Keys of an entry that are those of ``[model]``."""

_WHOLE = ("model", "models", "upstreams")
"""Tables that are not part of a model's own configuration."""

MODEL_TABLES = tuple(
    name for name, field in ModelEntry.model_fields.items() if field.annotation == Overrides
)
"""Tables that each model may override."""


def merged_for(entry: ModelEntry, name: str, base: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tables of a model's own configuration.

    Args:
        entry: of the model.
        name: of the model.
        base: tables of the whole configuration, without those of models.
    """
    merged = {key: value for key, value in base.items() if key not in _WHOLE}
    merged["model"] = {key: getattr(entry, key) for key in MODEL_KEYS} | {"served_name": name}
    for table in MODEL_TABLES:
        if changes := getattr(entry, table):
            merged[table] = merge(merged.get(table, {}), changes)
    return merged


def merge(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table with the keys that another one sets, also in the tables below."""
    merged = dict(base)
    for key, value in changes.items():
        below = merged.get(key)
        both = isinstance(value, Mapping) and isinstance(below, Mapping)
        merged[key] = merge(merged[key], value) if both else value
    return merged
