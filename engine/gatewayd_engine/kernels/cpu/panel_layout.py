"""Layout of panels in memory; imports neither torch nor the builder.

A panel holds ``2 * lanes`` outputs. Its inputs are in groups; each group begins with factors of the
outputs, if there are any, and then has the outputs' weights for one input after another.
"""

from __future__ import annotations

from dataclasses import dataclass

_BITS = {"f32": 32, "bf16": 16, "f16": 16, "s8": 8, "u8": 8, "e4m3": 8, "s4": 4, "u4": 4}


@dataclass(frozen=True, slots=True)
class PanelFormat:
    """How weights are stored.

    Attributes:
        codes: ``f32``, ``bf16``, ``f16``, ``e4m3``; whole numbers ``s8`` and ``s4``, or unsigned
            ``u8`` and ``u4``.
        num_factors: numbers of each output in a group: none, a scale, or a scale and an offset.
        factors: how they are stored: ``f32``, ``bf16`` or ``f16``.
    """

    codes: str
    num_factors: int = 0
    factors: str = "f32"

    @property
    def name(self) -> str:
        """Name of the format, which is part of symbols."""
        if not self.num_factors:
            return self.codes
        return f"{self.codes}_{self.num_factors}{self.factors}"

    @property
    def is_packed(self) -> bool:
        """Whether a byte holds the codes of two outputs."""
        return _BITS[self.codes] == 4

    def header_bytes(self, lanes: int) -> int:
        """Return the bytes of a group's factors."""
        return self.num_factors * 2 * lanes * _BITS[self.factors] // 8

    def input_bytes(self, lanes: int) -> int:
        """Return the bytes of a panel's weights for one input."""
        return _BITS[self.codes] * 2 * lanes // 8

    def panel_bytes(self, inputs: int, groups: int, lanes: int) -> int:
        """Return the bytes of a panel."""
        return groups * self.header_bytes(lanes) + inputs * self.input_bytes(lanes)
