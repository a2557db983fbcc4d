"""Which product suits a weight on a CPU: by what the weight is, not by who made it."""

from __future__ import annotations

import torch

from gatewayd_engine.model.layers import Linear, LinearOp
from gatewayd_engine.model.linears.dequantized import DequantizedLinear
from gatewayd_engine.model.linears.groups_of_16 import SixteensLinear, is_for_sixteens
from gatewayd_engine.model.linears.int4 import Int4Linear, is_for_nibbles
from gatewayd_engine.model.linears.int8 import LEAST_COLUMNS, MOST_COLUMNS, Int8Linear
from gatewayd_engine.model.linears.int8_as_int4_pairs import HalvesLinear, is_for_halves
from gatewayd_engine.model.linears.packed_cpu import ByteLinear, is_for_bytes
from gatewayd_engine.model.linears.static_scales import StaticLinear
from gatewayd_hooks.quantization import GroupedWeight, SparseWeight, StaticWeight, Weight


def choose(weight: Weight, bias: torch.Tensor | None = None) -> LinearOp:
    """The product of a weight."""
    if isinstance(weight, torch.Tensor):
        return Linear(weight, bias)
    if isinstance(weight, SparseWeight):
        return Linear(weight.values, bias)  # no kernel of a CPU leaves zeros out
    if isinstance(weight, StaticWeight):
        return _static(weight, bias)
    if _is_for_both_bytes(weight):
        return Int8Linear(weight, bias)
    if is_for_nibbles(weight):
        return Int4Linear(weight, bias)
    if is_for_bytes(weight):
        return ByteLinear(weight, bias)
    if is_for_halves(weight):
        return HalvesLinear(weight, bias)
    if is_for_sixteens(weight):
        return SixteensLinear(weight, bias)
    return DequantizedLinear(weight, bias)


def _static(weight: StaticWeight, bias: torch.Tensor | None) -> LinearOp:
    inner = weight.weight
    if isinstance(inner, GroupedWeight):
        inner = inner._replace(activations=weight.activations)
        if _is_for_both_bytes(inner):
            return Int8Linear(inner, bias, weight.scale)
        inner = inner._replace(activations="float")
    return StaticLinear(choose(inner), weight, bias)


def _is_for_both_bytes(weight: GroupedWeight) -> bool:
    return (
        weight.activations == "int8"
        and weight.codes.dtype == torch.int8
        and LEAST_COLUMNS <= weight.codes.shape[1] <= MOST_COLUMNS
        and weight.scales.shape[1] == 1
        and weight.group_of is None
        and weight.offsets is None
    )
