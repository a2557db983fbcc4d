"""Shared parts of the experts' Triton matmul kernels: tile scheduling and epilogue.

``base`` defines blocks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import triton
import triton.language as tl

from gatewayd_engine.kernels.experts.base import ClampedAct
from gatewayd_engine.kernels.gated_mlp import gate

if TYPE_CHECKING:
    from gatewayd_engine.kernels.experts.base import ExpertMatrices
    from gatewayd_engine.kernels.quantized.base import Activation


def epilogue(weight: ExpertMatrices, act: Activation | ClampedAct | None) -> dict[str, object]:
    """Return the constants of ``store_visits`` for a product; ``act`` is None for no gate."""
    limit, sharpness = act if isinstance(act, ClampedAct) else (0.0, 0.0)
    name = "clamped" if isinstance(act, ClampedAct) else act or ""
    return {
        "ACT": name,
        "LIMIT": limit,
        "SHARPNESS": sharpness,
        "HAS_BIAS": weight.bias is not None,
    }


@triton.jit
def tile_of(
    program: tl.tensor, blocks: tl.tensor, tiles: tl.tensor, BAND: tl.constexpr
) -> tuple[tl.tensor, tl.tensor]:
    """Return the block and the tile of rows of a program.

    Programs are ordered in bands of blocks, each of which covers all rows in sequence: adjacent
    blocks, which mostly belong to the same expert, share the rows in cache.
    """
    first = program // (BAND * tiles) * BAND
    inside = program % (BAND * tiles)
    # The last band may have fewer blocks.
    high = tl.minimum(blocks - first, BAND)
    return first + inside % high, inside // high


@triton.jit
def store_visits(
    made: tl.tensor,
    up: tl.tensor,
    weights: tl.tensor,
    biases: tl.tensor,
    out: tl.tensor,
    visit: tl.tensor,
    is_line: tl.tensor,
    row: tl.tensor,
    rows: tl.tensor,
    ACT: tl.constexpr,
    LIMIT: tl.constexpr,
    SHARPNESS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
) -> None:
    """Store the outputs of a block's visits: gated, or scaled by the router's weights.

    Args:
        made: sums, float32 ``[lines, rows]``; those of the gate projection if there is an ``ACT``.
        up: sums of the up projection; only used with an ``ACT``.
        weights: router's weights of the visits, float32; only used without an ``ACT``.
        biases: of the expert's rows; only used with ``HAS_BIAS``.
        out: shape ``[visits, rows]``.
        visit: visit of each line.
        is_line: mask of lines that are not padding.
        row: indices of the rows.
        rows: rows of the output.
        ACT: activation function of the gates, "clamped" for ``ClampedAct``; empty for none.
        LIMIT: see ``ClampedAct``.
        SHARPNESS: see ``ClampedAct``.
        HAS_BIAS: whether there are biases.
    """
    kind = out.dtype.element_ty
    if HAS_BIAS:
        made += tl.load(biases + row, mask=row < rows, other=0.0).to(tl.float32)[None, :]
        if ACT != "":
            up += tl.load(biases + rows + row, mask=row < rows, other=0.0).to(tl.float32)[None, :]
    if ACT == "":
        # Scaled in float32, before the only rounding.
        made *= tl.load(weights + visit, mask=is_line, other=0.0)[:, None]
    elif ACT == "clamped":
        # Compared rather than by ``minimum``, which would lose a NaN.
        given, other = made.to(kind).to(tl.float32), up.to(kind).to(tl.float32)
        given = tl.where(given > LIMIT, LIMIT, given)
        other = tl.where(other > LIMIT, LIMIT, tl.where(other < -LIMIT, -LIMIT, other))
        made = (other + 1.0) * given / (1.0 + tl.exp(-SHARPNESS * given))
    else:
        # Both halves are rounded first, as separate products would be.
        made = gate(made.to(kind), up.to(kind), ACT)
    place = out + visit.to(tl.int64)[:, None] * rows + row[None, :]
    tl.store(place, made.to(kind), mask=is_line[:, None] & (row < rows)[None, :])
