"""Selection of the CPU linear layer for a weight, by its format, not by its quantizer."""

from __future__ import annotations

import torch

from gatewayd_engine.model.layers import Linear, LinearOp
from gatewayd_engine.model.linears.dequantized import DequantizedLinear
from gatewayd_engine.model.linears.groups_of_16 import GroupsOf16Linear, fits_groups_of_16
from gatewayd_engine.model.linears.int4 import Int4Linear, fits_int4
from gatewayd_engine.model.linears.int8 import LEAST_COLUMNS, MOST_COLUMNS, Int8Linear
from gatewayd_engine.model.linears.int8_as_int4_pairs import Int8AsInt4PairsLinear, fits_int4_pairs
from gatewayd_engine.model.linears.packed_cpu import WeightOnlyInt8Linear, fits_weight_only_int8
from gatewayd_engine.model.linears.static_scales import StaticLinear
from gatewayd_hooks.quantization import GroupedWeight, SparseWeight, StaticWeight, Weight


def make_cpu_linear(weight: Weight, bias: torch.Tensor | None = None) -> LinearOp:
    """Make the fastest linear layer that supports a weight's format."""
    if isinstance(weight, torch.Tensor):
        return Linear(weight, bias)
    if isinstance(weight, SparseWeight):
        return Linear(weight.values, bias)  # CPUs have no sparse kernel
    if isinstance(weight, StaticWeight):
        return _static(weight, bias)
    # From the fastest kernel to the slowest; the first that fits is used.
    if _is_for_both_bytes(weight):
        return Int8Linear(weight, bias)
    if fits_int4(weight):
        return Int4Linear(weight, bias)
    if fits_weight_only_int8(weight):
        return WeightOnlyInt8Linear(weight, bias)
    if fits_int4_pairs(weight):
        return Int8AsInt4PairsLinear(weight, bias)
    if fits_groups_of_16(weight):
        return GroupsOf16Linear(weight, bias)
    return DequantizedLinear(weight, bias)


def _static(weight: StaticWeight, bias: torch.Tensor | None) -> LinearOp:
    inner = weight.weight
    if isinstance(inner, GroupedWeight):
        # Both sides stay codes if a kernel multiplies them; else rounded inputs are floats.
        inner = inner._replace(activations=weight.activations)
        if _is_for_both_bytes(inner):
            return Int8Linear(inner, bias, weight.scale)
        inner = inner._replace(activations="float")
    return StaticLinear(make_cpu_linear(inner), weight, bias)


def _is_for_both_bytes(weight: GroupedWeight) -> bool:
    return (
        weight.activations == "int8"
        and weight.codes.dtype == torch.int8
        and LEAST_COLUMNS <= weight.codes.shape[1] <= MOST_COLUMNS
        and weight.scales.shape[1] == 1
        and weight.group_of is None
        and weight.offsets is None
    )
