"""KV cache scales of a checkpoint, for a KV cache of plain 8-bit floats.

Dividing keys by a scale and multiplying queries by it does not change attention, nor does dividing
values and multiplying the output projection. So the scales are folded into the weights at load
time and cost nothing in a step.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import torch

from gatewayd_engine.model.loading.safetensors_headers import LoadError
from gatewayd_engine.model.loading.tensor_sources import TensorSource
from gatewayd_engine.model.spec import ModelSpec
from gatewayd_engine.model.weights import scale_rows
from gatewayd_hooks.quantization import StaticWeight, Stored, Weight

_log = logging.getLogger(__name__)

_KEYS = ("k_scale", "attn.k_scale", "k_proj.k_scale", "k_proj.output_scale", "kv_scale")
_VALUES = ("v_scale", "attn.v_scale", "v_proj.v_scale", "v_proj.output_scale", "kv_scale")
_OTHERS = ("q_scale", "attn.q_scale", "q_proj.output_scale", "prob_output_scale")
"""Scales of queries and attention probabilities, which are not quantized here."""
_ONE = ((), (1,))


class KvScales(NamedTuple):
    """Scales by which a layer's keys and values are divided before they are cached."""

    key: float
    value: float


def scale_names(spec: ModelSpec) -> Iterator[str]:
    """Yield all names that KV cache scales may have, including those that are not used."""
    for index in range(spec.num_layers):
        for part in dict.fromkeys((*_KEYS, *_VALUES, *_OTHERS)):
            yield f"{_prefix(index)}{part}"


def used_scales(spec: ModelSpec, source: TensorSource, *, is_plain: bool) -> dict[int, KvScales]:
    """Read the scales to fold into the weights, by layer, and log whether they are used.

    Args:
        spec: of the model.
        source: its tensors.
        is_plain: whether the KV codec writes plain e4m3; otherwise scales are not used.

    Raises:
        LoadError: a scale that is used is not a single number above 0.
    """
    if is_plain:
        scales = _read(spec, source)
        if scales:
            _log.info("keys and values of %d layers have the scales of the checkpoint", len(scales))
        return scales
    parts = (*_KEYS, *_VALUES)
    if any(_first(source.stored, index, parts) for index in range(spec.num_layers)):
        _log.info(
            "the checkpoint's scales of keys and values are not used: [kv_codec.fp8] scale ="
            ' "none" with e4m3 would'
        )
    return {}


def row_factors(spec: ModelSpec, scales: KvScales, *, has_norms: bool) -> torch.Tensor:
    """Return the factors to fold into the rows of a QKV projection, float32 ``[rows]``.

    With query and key norms, the scales are folded into these instead; see ``scaled_norms``.
    """
    # A norm after the projection would cancel a factor before it.
    query, key = (1.0, 1.0) if has_norms else (scales.key, 1 / scales.key)
    heads = (spec.num_heads, spec.num_kv_heads, spec.num_kv_heads)
    parts = zip((query, key, 1 / scales.value), heads, strict=True)
    return torch.cat([torch.full((n * spec.head_dim,), factor) for factor, n in parts])


def scaled_norms(norms: torch.Tensor, spec: ModelSpec, scales: KvScales) -> torch.Tensor:
    """Fold the key scale into norms of query heads, then key heads, ``[heads, head_dim]``."""
    made = norms.float()
    made[: spec.num_heads] *= scales.key
    made[spec.num_heads :] /= scales.key
    return made


def scaled_output(weight: Weight, scales: KvScales) -> Weight:
    """Fold the value scale into the output projection, whose input was divided by it."""
    made = scale_rows(weight, torch.tensor(scales.value))
    if isinstance(made, StaticWeight):
        # Its inputs are divided by ``scales.value``, and so is the scale that quantizes them.
        return made._replace(scale=made.scale / scales.value)
    return made


def _prefix(index: int) -> str:
    return f"model.layers.{index}.self_attn."


def _read(spec: ModelSpec, source: TensorSource) -> dict[int, KvScales]:
    """Read the scales of all layers that have any; one alone is used for keys and values."""
    found = {}
    for index in range(spec.num_layers):
        keys, values = (_first(source.stored, index, parts) for parts in (_KEYS, _VALUES))
        # Two names or none: a single scale takes both places.
        names = [name for name in (keys or values, values or keys) if name is not None]
        if names:
            found[index] = KvScales(*(_number(name, source) for name in names))
    return found


def _first(stored: Mapping[str, Stored], index: int, parts: tuple[str, ...]) -> str | None:
    names = (f"{_prefix(index)}{part}" for part in parts)
    return next((name for name in names if name in stored), None)


def _number(name: str, source: TensorSource) -> float:
    stored, where = source.stored[name], f"{source.where(name)}: {name}"
    # "F" is in the names of all float dtypes and of no other.
    if stored.shape not in _ONE or "F" not in stored.dtype:
        found = f"{stored.dtype} {list(stored.shape)}"
        raise LoadError(f"{where} is {found}; one float for all heads of a layer can be read")
    number = float(source.read(name))
    if not 0 < number < float("inf"):
        raise LoadError(f"{where} is {number}, and keys or values are divided by it")
    return number
