"""What the products of experts share: which block a program computes, and how answers are written.

Parts of Triton's kernels; ``experts`` says what a block is.
"""

from __future__ import annotations

import triton
import triton.language as tl

from gatewayd_engine.kernels.gated_mlp import gate


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
        made = gate(made.to(kind), up.to(kind), ACT)
    place = out + visit.to(tl.int64)[:, None] * rows + row[None, :]
    tl.store(place, made.to(kind), mask=is_line[:, None] & (row < rows)[None, :])
