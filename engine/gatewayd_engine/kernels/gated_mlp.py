"""Gated activation of feed-forward layers in Triton.

Memory-bound: two values are read and one is written for each output.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from gatewayd_engine.kernels.early_launch import wait
from gatewayd_engine.kernels.quantized.base import QuantizedRows
from gatewayd_engine.kernels.quantized.quantize_rows import (
    MOST_CODES,
    empty_quantized,
    store_quantized,
    warps,
)

if TYPE_CHECKING:
    from gatewayd_engine.kernels.quantized.base import Activation

_BLOCK = 1024


def gated(gate_up: torch.Tensor, act: Activation, *, early: bool = False) -> torch.Tensor:
    """See ``base``."""
    n, size = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty((n, size), dtype=gate_up.dtype, device=gate_up.device)
    if n:
        _gated[(n, triton.cdiv(size, _BLOCK))](
            gate_up,
            out,
            size,
            gate_up.stride(0),
            ACT=act,
            BLOCK=_BLOCK,
            EARLY=early,
            num_warps=4,
            launch_pdl=early,
        )
    return out


def gated_quant(
    gate_up: torch.Tensor,
    act: Activation,
    codes: torch.dtype,
    group: int = 0,
    *,
    early: bool = False,
) -> QuantizedRows:
    """See ``base``."""
    n, size = gate_up.shape[0], gate_up.shape[1] // 2
    # One program for each row: the scale of a row needs all of its numbers in registers.
    out = empty_quantized(n, size, codes, group, gate_up.device)
    if n:
        _gated_quant[(n,)](
            gate_up,
            out.codes,
            out.scales,
            size,
            gate_up.stride(0),
            ACT=act,
            MOST=MOST_CODES[codes],
            GROUP=group,
            BLOCK=triton.next_power_of_2(size),
            EARLY=early,
            num_warps=warps(size),
            launch_pdl=early,
        )
    return out


@triton.jit
def _gated(
    gate_up: tl.tensor,
    out: tl.tensor,
    size: tl.tensor,
    stride: tl.tensor,
    ACT: tl.constexpr,
    BLOCK: tl.constexpr,
    EARLY: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < size
    wait(EARLY)
    made = _gate(gate_up + row * stride + column, size, inside, ACT)
    tl.store(out + row * size + column, made, mask=inside)


@triton.jit
def _gated_quant(
    gate_up: tl.tensor,
    codes: tl.tensor,
    scales: tl.tensor,
    size: tl.tensor,
    stride: tl.tensor,
    ACT: tl.constexpr,
    MOST: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCK: tl.constexpr,
    EARLY: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < size
    wait(EARLY)
    made = _gate(gate_up + row * stride + column, size, inside, ACT).to(tl.float32)
    store_quantized(made, inside, column, row, size, codes, scales, MOST, GROUP)


@triton.jit
def _gate(place: tl.tensor, size: tl.tensor, inside: tl.tensor, ACT: tl.constexpr) -> tl.tensor:
    """Load gates and the values ``size`` numbers after them, and combine them; see ``gate``."""
    first = tl.load(place, mask=inside, other=0.0)
    return gate(first, tl.load(place + size, mask=inside, other=0.0), ACT)


@triton.jit
def gate(first: tl.tensor, second: tl.tensor, ACT: tl.constexpr) -> tl.tensor:
    """Return ``act(first)``, rounded to the input dtype, times ``second``, in that dtype."""
    value = first.to(tl.float32)
    if ACT == "silu":
        # For very negative gates exp(-value) is infinite, and the quotient rightly zero.
        value = value / (1.0 + tl.exp(-value))
    elif ACT == "gelu":
        value = 0.5 * value * (1.0 + tl.math.erf(value * 0.7071067811865476))
    else:
        # 1 + tanh(y) is 2 / (1 + exp(-2y)); the first factor is 2 * sqrt(2 / pi).
        inner = 1.5957691216057308 * (value + 0.044715 * value * value * value)
        value = value / (1.0 + tl.exp(-inner))
    # Reference implementations round here; sampled tokens match only with the same rounding.
    value = value.to(first.dtype).to(tl.float32)
    return (value * second.to(tl.float32)).to(first.dtype)
