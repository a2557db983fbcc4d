"""4-bit floats of quantized checkpoints, and the 8-bit exponents that scale them.

Source: OCP Microscaling Formats (MX) specification 1.0, sections 5.3.3 and 5.4. Imports no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

DOUBLED = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
"""Twice the number of each code (E2M1), so that all are integers."""
NAN_EXPONENT = 255
"""Exponent (E8M0) that stands for NaN."""
_BIAS = 127


def halved_scales(exponents: torch.Tensor) -> torch.Tensor:
    """Return half the scales of E8M0 exponents, uint8 of any shape, for ``DOUBLED`` numbers.

    Returns:
        float32; of ``NAN_EXPONENT``, a number that is not its scale.
    """
    # In float64: the smallest scale is below the normal numbers of float32.
    return exponents.double().sub(_BIAS + 1).exp2().float()
