"""Panels: float weights packed for the CPU's matrix products.

A panel holds ``2 * lanes`` outputs. Their weights for one input are adjacent, so that a product
broadcasts the input and every output has one accumulator, added to in the order of the inputs:
a row has the same bits in any batch and on any number of threads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch


@dataclass(frozen=True, slots=True)
class PanelFormat:
    """How weights are stored; kernels widen them to float32 in registers."""

    name: Literal["f32", "bf16", "f16"]
    dtype: torch.dtype


F32 = PanelFormat("f32", torch.float32)
BF16 = PanelFormat("bf16", torch.bfloat16)
F16 = PanelFormat("f16", torch.float16)


def smallest_exact(weight: torch.Tensor) -> PanelFormat:
    """Return the smallest format from which float32 weights are read back unchanged."""
    for form in (BF16, F16):
        if torch.equal(weight.to(form.dtype).float(), weight):
            return form
    return F32


def pack(weight: torch.Tensor, form: PanelFormat, lanes: int) -> torch.Tensor:
    """Copy weights, float32 ``[out, in]``, into panels, padded with zeros.

    Returns:
        Shape ``[panels, in, 2 * lanes]``.
    """
    rows, columns = weight.shape
    panels = -(-rows // (2 * lanes))
    packed = torch.empty(panels, columns, 2 * lanes, dtype=form.dtype)
    by_vector = _by_vector(packed, form, lanes)
    whole = rows // (2 * lanes)
    full = weight[: whole * 2 * lanes].view(whole, 2, lanes, columns)
    by_vector[:whole] = full.permute(0, 3, 1, 2)
    if whole < panels:
        rest = torch.zeros(2 * lanes, columns)
        rest[: rows - whole * 2 * lanes] = weight[whole * 2 * lanes :]
        by_vector[whole] = rest.view(2, lanes, columns).permute(2, 0, 1)
    return packed


def pair_halves(packed: torch.Tensor, form: PanelFormat, lanes: int) -> torch.Tensor:
    """Reorder a gate-up projection so that each panel holds gates and ups of the same outputs.

    Args:
        packed: of ``pack``, with as many full vectors of gates as of ups, gates first.
        form: of the weights.
        lanes: of a vector.
    """
    panels, columns, _ = packed.shape
    vectors = _by_vector(packed, form, lanes).permute(0, 2, 1, 3).reshape(2, panels, columns, lanes)
    paired = torch.empty_like(packed)
    _by_vector(paired, form, lanes).copy_(vectors.permute(1, 2, 0, 3))
    return paired


def _by_vector(packed: torch.Tensor, form: PanelFormat, lanes: int) -> torch.Tensor:
    """Return a view of shape ``[panels, in, 2, lanes]``."""
    if form is BF16:
        # Interleaved: a shift of 32-bit lanes widens one half of them, a mask the other one.
        return torch.unflatten(packed, 2, (lanes, 2)).transpose(2, 3)
    return torch.unflatten(packed, 2, (2, lanes))
