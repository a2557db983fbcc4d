"""Scaling of attended values by attention sinks, in one Triton kernel.

Memory-bound: a program reads and writes the values of one head of one token.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from gatewayd_engine.kernels.attention.paged_tile import LOG2E
from gatewayd_engine.kernels.early_launch import wait


def scale_by_sinks(
    out: torch.Tensor, lse: torch.Tensor, sinks: torch.Tensor, *, early: bool = False
) -> None:
    """See ``base``."""
    tokens, num_heads, dim = out.shape
    if tokens == 0:
        return
    _scale_by_sinks[(tokens, num_heads)](
        out,
        lse,
        sinks,
        dim,
        BLOCK=triton.next_power_of_2(dim),
        EARLY=early,
        num_warps=1,
        launch_pdl=early,
    )


@triton.jit
def _scale_by_sinks(
    out: tl.tensor,
    lse: tl.tensor,
    sinks: tl.tensor,
    dim: tl.tensor,
    BLOCK: tl.constexpr,
    EARLY: tl.constexpr,
) -> None:
    wait(EARLY)
    head = tl.program_id(1)
    row = tl.program_id(0).to(tl.int64) * tl.num_programs(1) + head
    # The sigmoid of ``lse - sink``, in base 2. A row that sees nothing has minus infinity, and 0.
    share = 1.0 / (1.0 + tl.exp2(tl.load(sinks + head) * LOG2E - tl.load(lse + row)))
    column = tl.arange(0, BLOCK)
    value = tl.load(out + row * dim + column, mask=column < dim)
    made = value.to(tl.float32) * share
    tl.store(out + row * dim + column, made.to(out.dtype.element_ty), mask=column < dim)
