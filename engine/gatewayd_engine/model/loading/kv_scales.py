"""Scales of keys and values that a checkpoint has, for records that are plain 8-bit floats.

Dividing keys by a scale and multiplying queries with it leaves attention as it was, and so does
dividing values and multiplying what the output projection makes. So the weights take the scales up
when they are read, and a step does nothing for them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import torch

from gatewayd_engine.model.loading.safetensors_headers import LoadError
from gatewayd_engine.model.loading.tensor_sources import TensorSource
from gatewayd_engine.model.spec import ModelSpec
from gatewayd_engine.model.weights import times
from gatewayd_hooks.quantization import StaticWeight, Stored, Weight

_log = logging.getLogger(__name__)

_KEYS = ("k_scale", "attn.k_scale", "k_proj.k_scale", "k_proj.output_scale", "kv_scale")
_VALUES = ("v_scale", "attn.v_scale", "v_proj.v_scale", "v_proj.output_scale", "kv_scale")
_OTHERS = ("q_scale", "attn.q_scale", "q_proj.output_scale", "prob_output_scale")
"""Of queries and of what attention weighs with, which stay floats here."""
_ONE = ((), (1,))


class KvScales(NamedTuple):
    """What a layer's keys and values are divided by before they are written."""

    key: float
    value: float


def scale_names(spec: ModelSpec) -> Iterator[str]:
    """What such tensors may be called, those that are not used among them."""
    for index in range(spec.num_layers):
        for part in dict.fromkeys((*_KEYS, *_VALUES, *_OTHERS)):
            yield f"{_prefix(index)}{part}"


def used_scales(spec: ModelSpec, source: TensorSource, *, is_plain: bool) -> dict[int, KvScales]:
    """Those of the layers that weights take up, and a line in the log about them.

    Args:
        spec: of the model.
        source: its tensors.
        is_plain: whether the KV codec writes plain e4m3; else they are not looked at.

    Raises:
        LoadError: one that is used is no single number above 0.
    """
    if is_plain:
        scales = _read(spec, source)
        if scales:
            told = "keys and values of %d layers have the scales of the checkpoint"
            _log.info(told, len(scales))
        return scales
    parts = (*_KEYS, *_VALUES)
    if any(_first(source.stored, index, parts) for index in range(spec.num_layers)):
        _log.info(
            "the checkpoint's scales of keys and values are not used: [kv_codec.fp8] scale ="
            ' "none" with e4m3 would'
        )
    return {}


def row_factors(spec: ModelSpec, scales: KvScales) -> torch.Tensor:
    """What rows of a joined projection are multiplied with, float32 ``[rows]``.

    Queries and keys that have norms are scaled by those: their rows stay.
    """
    query, key = (1.0, 1.0) if spec.family.qk_norm else (scales.key, 1 / scales.key)
    heads = (spec.num_heads, spec.num_kv_heads, spec.num_kv_heads)
    parts = zip((query, key, 1 / scales.value), heads, strict=True)
    return torch.cat([torch.full((n * spec.head_dim,), factor) for factor, n in parts])


def scaled_norms(norms: torch.Tensor, spec: ModelSpec, scales: KvScales) -> torch.Tensor:
    """Norms of query heads and then key heads, ``[heads, head_dim]``, with a scale taken up."""
    made = norms.float()
    made[: spec.num_heads] *= scales.key
    made[spec.num_heads :] /= scales.key
    return made


def scaled_output(weight: Weight, scales: KvScales) -> Weight:
    """The projection of what was attended to, which comes divided."""
    made = times(weight, torch.tensor(scales.value))
    if isinstance(made, StaticWeight):
        return made._replace(scale=made.scale / scales.value)
    return made


def _prefix(index: int) -> str:
    return f"model.layers.{index}.self_attn."


def _read(spec: ModelSpec, source: TensorSource) -> dict[int, KvScales]:
    """Those of the layers that have any; of one kind alone they are for both."""
    found = {}
    for index in range(spec.num_layers):
        keys, values = (_first(source.stored, index, parts) for parts in (_KEYS, _VALUES))
        names = [name for name in (keys or values, values or keys) if name is not None]
        if names:
            found[index] = KvScales(*(_number(name, source) for name in names))
    return found


def _first(stored: Mapping[str, Stored], index: int, parts: tuple[str, ...]) -> str | None:
    names = (f"{_prefix(index)}{part}" for part in parts)
    return next((name for name in names if name in stored), None)


def _number(name: str, source: TensorSource) -> float:
    stored, where = source.stored[name], f"{source.where(name)}: {name}"
    if stored.shape not in _ONE or "F" not in stored.dtype:
        told = f"{stored.dtype} {list(stored.shape)}"
        raise LoadError(f"{where} is {told}; one float for all heads of a layer can be read")
    number = float(source.read(name))
    if not 0 < number < float("inf"):
        raise LoadError(f"{where} is {number}, and keys or values are divided by it")
    return number
