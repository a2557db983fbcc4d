"""Panels: weights packed for the CPU's matrix products.

A panel holds ``2 * lanes`` outputs. Their weights for one input are adjacent, so that a product
broadcasts the input and every output has one accumulator, added to in the order of the inputs:
a row has the same bits in any batch and on any number of threads.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from gatewayd_engine.kernels.cpu.panel_layout import PanelFormat
from gatewayd_hooks.quantization import GroupedWeight

F32, BF16, F16 = PanelFormat("f32"), PanelFormat("bf16"), PanelFormat("f16")
DTYPES = {F32: torch.float32, BF16: torch.bfloat16, F16: torch.float16}
_NIBBLES = 4


@dataclass(frozen=True, slots=True, eq=False)
class Panels:
    """A packed matrix.

    Attributes:
        data: bytes, shape ``[panels, panel_bytes]``.
        form: of the weights.
        inputs, outputs: shape of the matrix.
        groups: of the inputs; 1 for floats.
    """

    data: torch.Tensor
    form: PanelFormat
    inputs: int
    outputs: int
    groups: int


def smallest_exact(weight: torch.Tensor) -> PanelFormat:
    """Return the smallest format from which float32 weights are read back unchanged."""
    for form in (BF16, F16):
        if torch.equal(weight.to(DTYPES[form]).float(), weight):
            return form
    return F32


def pack(weight: torch.Tensor, lanes: int, form: PanelFormat | None = None) -> Panels:
    """Copy weights, float32 ``[out, in]``, into panels.

    Args:
        weight: the matrix.
        lanes: of a vector.
        form: of floats; None for the smallest that is exact.
    """
    form = smallest_exact(weight) if form is None else form
    halves = by_input(weight.to(DTYPES[form]), lanes)  # [panels, in, 2, lanes]
    if form is BF16:
        # Interleaved: a shift of 32-bit lanes widens one half of them, a mask the other one.
        halves = halves.transpose(2, 3)
    data = halves.contiguous().flatten(1).view(torch.uint8)
    return Panels(data, form, weight.shape[1], weight.shape[0], 1)


def pack_codes(weight: GroupedWeight, lanes: int) -> Panels | None:
    """Copy a quantized matrix into panels; None if they cannot hold its format."""
    found = _codes_of(weight)
    if found is None or weight.group_of is not None:
        return None
    name, codes = found
    rows, inputs = codes.shape
    groups = weight.scales.shape[1]
    factors = [weight.scales] if weight.offsets is None else [weight.scales, weight.offsets]
    stored = smallest_exact(torch.cat(factors))
    form = PanelFormat(name, len(factors), stored.codes)
    halves = by_input(codes, lanes)
    if form.is_packed:
        halves = halves[:, :, 0] | (halves[:, :, 1] << _NIBBLES)
    each = [
        by_input(factor.to(DTYPES[stored]), lanes).flatten(2).view(torch.uint8)
        for factor in factors
    ]
    # Group by group: its factors, then its inputs.
    parts = [*each, halves.reshape(len(halves), groups, -1)]
    data = torch.cat(parts, 2).flatten(1)
    return Panels(data, form, inputs, rows, groups)


def by_input(matrix: torch.Tensor, lanes: int) -> torch.Tensor:
    """Return ``[panels, columns, 2, lanes]`` of a matrix ``[rows, columns]``, padded with zeros."""
    missing = -len(matrix) % (2 * lanes)
    if missing:
        matrix = torch.cat((matrix, matrix.new_zeros(missing, matrix.shape[1])))
    split = torch.unflatten(matrix, 0, (-1, 2, lanes))
    return split.permute(0, 3, 1, 2).contiguous()


def paired_rows(count: int, lanes: int) -> torch.Tensor:
    """Return the row order of a gate-up projection whose panels hold gates and ups of same outputs.

    Args:
        count: rows, all gates first; a multiple of ``2 * lanes``.
        lanes: of a vector.
    """
    return torch.arange(count).view(2, -1, lanes).transpose(0, 1).flatten()


def _codes_of(weight: GroupedWeight) -> tuple[str, torch.Tensor] | None:
    """Return the name of a weight's codes and their bytes, uint8."""
    codes = weight.codes
    if weight.activations != "float":
        return None
    if codes.dtype == torch.float8_e4m3fn:
        return "e4m3", codes.view(torch.uint8)
    if codes.dtype not in (torch.int8, torch.uint8):
        return None
    is_signed = codes.dtype == torch.int8
    if weight.bits <= _NIBBLES:
        shifted = codes + 8 if is_signed else codes
        return ("s4" if is_signed else "u4"), shifted.to(torch.uint8)
    return ("s8" if is_signed else "u8"), codes.view(torch.uint8)
