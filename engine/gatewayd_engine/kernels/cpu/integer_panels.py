"""Packing of quantized weights whose products with rounded activations are integers."""

from __future__ import annotations

import torch

from gatewayd_engine.kernels.cpu.panel_layout import (
    NEST,
    ROUNDED,
    CodeLayout,
    PanelFormat,
    code_layout,
)
from gatewayd_engine.kernels.cpu.panels import DTYPES, F32, Panels, by_input, smallest_exact
from gatewayd_engine.kernels.llvm.processor import Processor
from gatewayd_hooks.quantization import GroupedWeight

_HALF_SPAN = ROUNDED // 2
_LARGEST = 127
_BYTE = 256
_FRACTION_BITS = 24
_MOST_SHIFT = 28
"""Float32 numbers that differ by more powers of two are no small multiples of one number."""
_HUGE = 1 << 20
_SAMPLE = 4
"""Rows that are looked at first."""


def pack_integers(weight: GroupedWeight, processor: Processor) -> Panels | None:
    """Copy a quantized matrix into panels; None if its products with integers are none.

    Its codes are integers, and its groups are of adjacent inputs, a multiple of 32 or just 16.
    """
    codes = weight.codes
    rows, inputs = codes.shape
    groups = weight.scales.shape[1]
    size = inputs // groups
    if (
        not processor.dots
        or codes.dtype not in (torch.int8, torch.uint8)
        or weight.group_of is not None
        or weight.activations == "e4m3"
        or inputs % ROUNDED
        or (size % ROUNDED and size != _HALF_SPAN)
    ):
        return None
    name = _smallest(codes)
    factors = [weight.scales] if weight.offsets is None else [weight.scales, weight.offsets]
    stored = smallest_exact(torch.cat(factors))
    parts: list[torch.Tensor]
    nests = None
    if stored == F32 and size <= ROUNDED and inputs % NEST == 0:
        nests = _nested(torch.stack(factors), NEST // size)
    form = PanelFormat(
        *(name, len(factors), "nested" if nests else stored.codes), min(size, ROUNDED)
    )
    lanes = processor.lanes
    if nests is None:
        parts = [_bytes(factor.to(DTYPES[stored]), lanes) for factor in factors]
    else:
        parts = [_bytes(factor, lanes) for factor in nests[1]]
    layout = code_layout(name, processor.dots)
    parts.append(torch.unflatten(_units(codes, layout, lanes), 1, (groups, -1)).flatten(2))
    data = torch.cat(parts, 2)
    if nests is not None:
        data = torch.unflatten(data, 1, (inputs // NEST, -1)).flatten(2)
        data = torch.cat([*(_bytes(number, lanes) for number in nests[0]), data], 2)
    return Panels(data.flatten(1), form, inputs, rows, groups)


def _smallest(codes: torch.Tensor) -> str:
    """Return the format of fewest bits that holds all codes."""
    least, most = map(int, torch.aminmax(codes))
    if codes.dtype == torch.uint8:
        return next(f"u{bits}" for bits in (4, 6, 8) if most < 1 << bits)
    # The magnitude of the lowest code is that of the highest and one.
    return next(f"s{bits}" for bits in (4, 6, 8) if max(-least, most + 1) <= 1 << (bits - 1))


def _bytes(factors: torch.Tensor, lanes: int) -> torch.Tensor:
    """Return ``[panels, groups, bytes]`` of factors ``[rows, groups]``."""
    return by_input(factors, lanes).flatten(2).view(torch.uint8)


def _units(codes: torch.Tensor, layout: CodeLayout, lanes: int) -> torch.Tensor:
    """Return codes as ``CodeLayout`` orders them, ``[panels, units, bytes]``."""
    missing = -len(codes) % (2 * lanes)
    if missing:
        codes = torch.cat((codes, codes.new_zeros(missing, codes.shape[1])))
    stored = codes.to(torch.uint8)
    if layout.zero:
        stored = stored + (layout.zero % _BYTE)  # modulo 256
    # [panels, outputs, units, runs of a unit, adjacent]
    runs = layout.inputs // layout.adjacent
    units = torch.unflatten(stored, 1, (-1, runs, layout.adjacent))
    units = torch.unflatten(units, 0, (-1, 2 * lanes))
    if layout.bits < 8:
        low, high = units & 15, units >> 4
        planes = [low[..., 0::2, :] | (low[..., 1::2, :] << 4)]
        if layout.bits == 6:
            crumbs = [high[..., i : i + 1, :] << (2 * i) for i in range(4)]
            planes.append(crumbs[0] | crumbs[1] | crumbs[2] | crumbs[3])
        units = torch.cat(planes, -2)
    return units.permute(0, 2, 3, 1, 4).flatten(2).contiguous()


def _nested(factors: torch.Tensor, per_nest: int) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Return factors as bytes times a number for each nest, exactly; None if they are not.

    Args:
        factors: float32 ``[n, rows, groups]``.
        per_nest: groups of a nest.

    Returns:
        Numbers, float32 ``[n, rows, nests]``, and int8 multiples ``[n, rows, groups]``.
    """
    some = factors[:, :_SAMPLE]
    # Most formats are not nested, which a few rows show.
    if factors.shape[1] > _SAMPLE and _nested(some, per_nest) is None:
        return None
    grouped = torch.unflatten(factors, 2, (-1, per_nest))
    fractions, exponents = torch.frexp(grouped)
    exponents = exponents.long().masked_fill_(grouped == 0, _HUGE)
    least = exponents.amin(-1, keepdim=True)
    shifts = (exponents - least).clamp_(0, _MOST_SHIFT)
    whole = torch.ldexp(fractions.double(), shifts + _FRACTION_BITS).long()
    divisor = whole[..., :1].abs()
    for i in range(1, per_nest):
        divisor = torch.gcd(divisor, whole[..., i : i + 1])
    multiples = whole // divisor.clamp_min(1)
    # A byte holds -128 and not 128, which llama.cpp makes of the largest scale of each nest.
    sign = torch.where(multiples.amax(-1, keepdim=True) > _LARGEST, -1, 1)
    multiples = (multiples * sign).clamp_(-_LARGEST - 1, _LARGEST)
    numbers = torch.ldexp(divisor.double(), (least - _FRACTION_BITS).clamp_max(_FRACTION_BITS))
    numbers = numbers.float() * sign
    if not torch.equal(numbers * multiples, grouped):
        return None
    return numbers.squeeze(-1), multiples.to(torch.int8).flatten(2)
