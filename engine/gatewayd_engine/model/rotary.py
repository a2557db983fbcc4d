"""Rotary position embedding: a table of all positions, made once, gathered once per step."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from gatewayd_engine.model.rope import RopeSpec


class Rotation(NamedTuple):
    """Cosines and signed sines of a step's positions, each ``[num_tokens, 1, rotary_dim]``."""

    cos: torch.Tensor
    sin: torch.Tensor


class Rotary:
    """Rotates the first ``rotary_dim`` dimensions of each head, halves paired."""

    __slots__ = ("_half", "_rotary_dim", "_table")

    def __init__(
        self, spec: RopeSpec, max_len: int, dtype: torch.dtype, device: torch.device | str
    ) -> None:
        positions = torch.arange(max_len, dtype=torch.float32, device=device)
        angles = torch.outer(positions, frequencies(spec).to(device))
        cos, sin = angles.cos() * spec.magnitude, angles.sin() * spec.magnitude
        # With the first half's sine negated, a rotation is x * cos + swapped(x) * sin.
        table = torch.stack((torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)), 1)
        self._table = table.unsqueeze(2).to(dtype)
        self._rotary_dim = spec.rotary_dim
        self._half = spec.rotary_dim // 2

    def at(self, positions: torch.Tensor) -> Rotation:
        """Look up positions, int64 ``[num_tokens]``, all below ``max_len``."""
        cos, sin = self._table.index_select(0, positions).unbind(1)
        return Rotation(cos, sin)

    def rotate(self, heads: torch.Tensor, rotation: Rotation) -> None:
        """Rotate ``[num_tokens, num_heads, head_dim]`` in place."""
        if self._rotary_dim != heads.shape[-1]:
            heads = heads[..., : self._rotary_dim]
        swapped = heads.roll(self._half, -1)
        heads.mul_(rotation.cos).addcmul_(swapped, rotation.sin)


def frequencies(spec: RopeSpec) -> torch.Tensor:
    """Angle per position, float32 ``[rotary_dim / 2]``.

    In float32 throughout, as models are trained: a frequency that is more exact would be
    another one at position 10,000.
    """
    exponents = torch.arange(0, spec.rotary_dim, 2, dtype=torch.float32) / spec.rotary_dim
    match spec.kind:
        case "linear":
            return 1.0 / spec.theta**exponents / spec.factor
        case "llama3":
            return _llama3(1.0 / spec.theta**exponents, spec)
        case "yarn":
            return _yarn(spec.theta**exponents, spec)
        case "longrope":
            return 1.0 / (torch.tensor(spec.stretch, dtype=torch.float32) * spec.theta**exponents)
        case _:
            return 1.0 / spec.theta**exponents


def _llama3(plain: torch.Tensor, spec: RopeSpec) -> torch.Tensor:
    """Stretch long wavelengths, keep short ones, blend between. Source: Llama 3.1's release."""
    wavelength = 2 * math.pi / plain
    stretched = plain / spec.factor
    keep = (spec.original_len / wavelength - spec.low_freq_factor) / (
        spec.high_freq_factor - spec.low_freq_factor
    )
    blended = (1 - keep) * stretched + keep * plain
    is_long = wavelength > spec.original_len / spec.low_freq_factor
    is_short = wavelength < spec.original_len / spec.high_freq_factor
    return torch.where(is_long, stretched, torch.where(is_short, plain, blended))


def _yarn(wavelengths: torch.Tensor, spec: RopeSpec) -> torch.Tensor:
    """Stretch by how often a dimension turns in the original context. Source: arXiv 2309.00071."""

    def dimension(turns: float) -> float:
        ratio = math.log(spec.original_len / (turns * 2 * math.pi))
        return spec.rotary_dim * ratio / (2 * math.log(spec.theta))

    low, high = dimension(spec.beta_fast), dimension(spec.beta_slow)
    if spec.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, spec.rotary_dim - 1)
    steps = torch.arange(spec.rotary_dim // 2, dtype=torch.float32) - low
    keep = 1 - torch.clamp(steps / (high - low if high != low else 0.001), 0, 1)
    return (1 - keep) / (spec.factor * wavelengths) + keep / wavelengths
