"""What the products of experts share: which block a program computes, and how answers are written.

Parts of Triton's kernels; ``experts`` says what a block is.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def tile_of(
    program: tl.tensor, blocks: tl.tensor, tiles: tl.tensor, BAND: tl.constexpr
) -> tuple[tl.tensor, tl.tensor]:
    """The block and the tile of rows of a program.

    Bands of blocks, in each all rows one after the other: blocks that are neighbours, which mostly
    are the same expert's, read the same rows while a cache has them.
    """
    first = program // (BAND * tiles) * BAND
    inside = program % (BAND * tiles)
    high = tl.minimum(blocks - first, BAND)
    return first + inside % high, inside // high


@triton.jit
def activated(gate: tl.tensor, ACT: tl.constexpr) -> tl.tensor:
    """The function of a gate, float32."""
    if ACT == "silu":
        made = gate / (1.0 + tl.exp(-gate))
    elif ACT == "gelu":
        made = 0.5 * gate * (1.0 + tl.math.erf(gate * 0.7071067811865476))
    else:
        # 1 + tanh(y) is 2 / (1 + exp(-2y)); the first factor is 2 * sqrt(2 / pi).
        inner = 1.5957691216057308 * (gate + 0.044715 * gate * gate * gate)
        made = gate / (1.0 + tl.exp(-inner))
    return made


@triton.jit
def store_visits(
    made: tl.tensor,
    up: tl.tensor,
    weights: tl.tensor,
    out: tl.tensor,
    visit: tl.tensor,
    is_line: tl.tensor,
    row: tl.tensor,
    rows: tl.tensor,
    ACT: tl.constexpr,
) -> None:
    """Write what a block's visits come to.

    Args:
        made: sums, float32 ``[lines, rows]``; those of gates if there is an ``ACT``.
        up: sums of what is gated; looked at only then.
        weights: of the visits, float32; looked at only if there is no ``ACT``.
        out: shape ``[visits, rows]``.
        visit: numbers of the lines' visits.
        is_line: which of them there are.
        row: numbers of the rows.
        rows: of an answer.
        ACT: function of the gates; empty for none.
    """
    kind = out.dtype.element_ty
    if ACT == "":
        made *= tl.load(weights + visit, mask=is_line, other=0.0)[:, None]
    else:
        # Models round here, so tokens are equal only with the same rounding.
        gate = activated(made.to(kind).to(tl.float32), ACT).to(kind).to(tl.float32)
        made = gate * up.to(kind).to(tl.float32)
    place = out + visit.to(tl.int64)[:, None] * rows + row[None, :]
    tl.store(place, made.to(kind), mask=is_line[:, None] & (row < rows)[None, :])
