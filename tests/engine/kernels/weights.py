"""Low-bit matrices of every kind that kernels read, at any size."""

from __future__ import annotations

import torch

from gatewayd_hooks.quantization import GroupedWeight

KINDS = ("symmetric", "signed", "offsets", "any order", "bytes", "signed bytes", "joined", "e4m3")
"""As GPTQ, Q4_0, AWQ, GPTQ with ``desc_act``, and in bytes: Q6_K, Q8_0, Q4_K joined with Q6_K,
8-bit floats."""


def grouped(kind: str, rows: int, columns: int, groups: int) -> GroupedWeight:
    """A weight of random codes, the same for the same sizes."""
    generator = torch.Generator().manual_seed(rows + columns + groups)

    def codes(low: int, high: int) -> torch.Tensor:
        return torch.randint(low, high, (rows, columns), generator=generator)

    scales = (torch.rand(rows, groups, generator=generator) + 0.5).half().float() / 64
    zeros = torch.randint(0, 16, (rows, groups), generator=generator)
    match kind:
        case "symmetric":
            return GroupedWeight(codes(0, 16).byte(), scales, scales * -8, 4)
        case "signed":
            return GroupedWeight(codes(-8, 8).char(), scales, None, 4)
        case "offsets":
            return GroupedWeight(codes(0, 16).byte(), scales, -zeros * scales, 4)
        case "any order":
            order = torch.randperm(columns, generator=generator)
            group_of = (order // (columns // groups)).int()
            return GroupedWeight(codes(0, 16).byte(), scales, -zeros * scales, 4, group_of)
        case "bytes":
            return GroupedWeight(codes(0, 256).byte(), scales, scales * -100)
        case "signed bytes":
            # No float16 has as many digits.
            return GroupedWeight(codes(-128, 128).char(), scales / 3)
        case "joined":
            return GroupedWeight(codes(-128, 128).char(), scales / 3, -zeros * scales)
        case "e4m3":
            numbers = torch.randn(rows, columns, generator=generator) * 40
            numbers.view(-1)[:3] = torch.tensor([2.0**-9, -3 * 2.0**-9, 448.0])[: rows * columns]
            return GroupedWeight(numbers.to(torch.float8_e4m3fn), scales)
    raise ValueError(kind)
