"""Layout of panels in memory; imports neither torch nor the builder.

A panel holds ``2 * lanes`` outputs. Its inputs are in groups; each group begins with factors of the
outputs, if there are any. Where activations stay floats, the outputs' weights for one input after
another follow; where they are rounded, see ``CodeLayout``.
"""

from __future__ import annotations

from dataclasses import dataclass

NEST = 256
"""Inputs whose nested factors are multiples of the same numbers."""
ROUNDED = 32
"""Adjacent inputs that are rounded to 8-bit integers with one scale."""

_BITS = {"f32": 32, "bf16": 16, "f16": 16, "e4m3": 8, "s8": 8, "u8": 8, "s6": 6, "u6": 6}
_BITS |= {"s4": 4, "u4": 4}
_FACTOR_BITS = {"f32": 32, "bf16": 16, "f16": 16, "nested": 8}


@dataclass(frozen=True, slots=True)
class PanelFormat:
    """How weights are stored, and what they are multiplied with.

    Attributes:
        codes: ``f32``, ``bf16``, ``f16``, ``e4m3``; whole numbers ``s8``, ``s6`` and ``s4``, or
            unsigned ``u8``, ``u6`` and ``u4``.
        num_factors: numbers of each output in a group: none, a scale, or a scale and an offset.
        factors: how they are stored: ``f32``, ``bf16``, ``f16``, or ``nested``: as bytes, which
            are multiplied by a float32 number for each ``NEST`` inputs.
        span: inputs whose products are added as integers, 16 or 32, where activations are rounded;
            0 where they stay floats.
    """

    codes: str
    num_factors: int = 0
    factors: str = "f32"
    span: int = 0

    @property
    def name(self) -> str:
        """Name of the format, which is part of symbols."""
        made = f"{self.codes}_{self.num_factors}{self.factors}" if self.num_factors else self.codes
        return f"{made}_int8_{self.span}" if self.span else made

    @property
    def is_packed(self) -> bool:
        """Whether a byte holds the codes of two outputs."""
        return _BITS[self.codes] == 4

    @property
    def is_nested(self) -> bool:
        """Whether factors are multiples of others."""
        return self.factors == "nested"

    def header_bytes(self, lanes: int) -> int:
        """Return the bytes of a group's factors."""
        return self.num_factors * 2 * lanes * _FACTOR_BITS[self.factors] // 8

    def nest_bytes(self, lanes: int) -> int:
        """Return the bytes before ``NEST`` inputs, of what their factors are multiples of."""
        return self.num_factors * 2 * lanes * 4 if self.is_nested else 0

    def input_bytes(self, lanes: int) -> int:
        """Return the bytes of a panel's weights for one input."""
        return _BITS[self.codes] * 2 * lanes // 8

    def panel_bytes(self, inputs: int, groups: int, lanes: int) -> int:
        """Return the bytes of a panel."""
        factors = groups * self.header_bytes(lanes) + inputs // NEST * self.nest_bytes(lanes)
        return factors + inputs * self.input_bytes(lanes)


@dataclass(frozen=True, slots=True)
class CodeLayout:
    """How codes lie that are multiplied with rounded activations.

    A unit has ``inputs`` successive ones; for each plane of it, each output has ``adjacent`` bytes.
    Codes of eight bits have one plane. Codes of four bits have one, too: its bytes' low halves are
    of the first ``adjacent`` inputs, their high halves of the next. Codes of six bits have two such
    planes, for twice as many inputs, and one with their high two bits, the first inputs' lowest.

    Attributes:
        bits: of a code.
        adjacent: inputs of an output that one instruction adds.
        zero: stored code of a zero; codes are stored unsigned if ``is_unsigned``.
        is_unsigned: whether they are.
    """

    bits: int
    adjacent: int
    zero: int
    is_unsigned: bool

    @property
    def inputs(self) -> int:
        """Inputs of a unit."""
        return self.adjacent * {8: 1, 4: 2, 6: 4}[self.bits]

    @property
    def activation_bytes(self) -> int:
        """Bytes of a rounded activation: pairs are multiplied in 16 bits."""
        return 2 if self.adjacent == 2 else 1


def code_layout(codes: str, dots: str) -> CodeLayout:
    """Return the layout of codes for the instructions of a processor; see ``Processor.dots``."""
    bits, is_signed = _BITS[codes], codes.startswith("s")
    if bits < 8:
        return CodeLayout(bits, 4, 1 << (bits - 1) if is_signed else 0, True)
    if dots == "madd":
        # The products of two unsigned and signed bytes each would overflow their sum of 16 bits.
        return CodeLayout(bits, 2, 0, not is_signed)
    if dots == "vnni":
        return CodeLayout(bits, 4, 128 if is_signed else 0, True)
    return CodeLayout(bits, 4, 0 if is_signed else -128, False)


HEADER = 16
"""Bytes before the codes of ``ROUNDED`` activations: their scale, float32; the sums of all codes,
of the first half of them and of the second, int32."""


def rounded_bytes(inputs: int, layout: CodeLayout) -> int:
    """Return the bytes of a row of rounded activations; ``inputs`` is a multiple of ``ROUNDED``."""
    return inputs // ROUNDED * (HEADER + ROUNDED * layout.activation_bytes)
