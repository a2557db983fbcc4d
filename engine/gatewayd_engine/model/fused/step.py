"""Fused steps of a decoder on a CPU: all layers in one compiled call; see ``kernels.cpu.step``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from gatewayd_engine.kernels.cpu.code import step_code
from gatewayd_engine.kernels.cpu.step_layout import (
    ARGUMENTS,
    MATRICES,
    OTHER_PHASES,
    PHASES_PER_LAYER,
    Argument,
    MatrixField,
    StepShape,
)
from gatewayd_engine.kernels.cpu.team import ThreadTeam
from gatewayd_engine.model.fused.data import Draws, PagedRows, StepOutputs

if TYPE_CHECKING:
    from gatewayd_engine.model.decoder import Decoder

_OF_STEP = np.array(
    (
        *(Argument.ROWS, Argument.NUM_WANTED, Argument.STREAM, Argument.NORMED),
        *(Argument.POSITIONS, Argument.SLOTS, Argument.LINES),
        *(Argument.TABLE, Argument.PAGES, Argument.POOL),
        *(Argument.WANTED, Argument.SELECTED, Argument.LOGITS),
        *(Argument.BEST, Argument.TOKENS),
        *(Argument.VISIBLE, Argument.VISIBLE_STRIDE, Argument.DRAFTS),
        *(Argument.BLOCKS, Argument.NUM_BLOCKS),
        *(Argument.TEMPERATURES, Argument.UNIFORMS, Argument.FILTERED),
        *(Argument.TOP_K, Argument.TOP_P, Argument.MIN_P),
    )
)
"""Arguments that change with each step."""
_ROUNDED = 64
"""Contexts are rounded up to this many slots, so that scratch memory seldom grows."""
_BLOCK_ROWS = 16
"""Rows of a sequence that read its keys and values once, at most."""
_MOST_SCORES = 1 << 20
"""Scores of a thread's block, at most, unless a single row has more: 4 MiB."""
_NO_DRAWS = (0,) * 6
"""Null pointers in place of ``Draws.addresses``."""


class FusedStep:
    """Calls of the compiled step of one decoder and page size.

    Args:
        decoder: owns the weights.
        shape: of its steps.
        blocks: addresses and sizes of each layer, shape ``[layers, LAYER_SIZE]``.
        final_norm: weight of the norm of the hidden states.
        head: address and sizes of the head, shape ``[len(MatrixField)]``.
        team: computes the steps.

    Attributes:
        shape: as given.
    """

    def __init__(
        self,
        decoder: Decoder,
        shape: StepShape,
        blocks: NDArray[np.int64],
        final_norm: torch.Tensor,
        head: NDArray[np.int64],
        team: ThreadTeam,
    ) -> None:
        self._decoder = decoder
        self.shape = shape
        self._team = team
        self._function = step_code(team.processor, shape).address("step")
        self._blocks = blocks
        self._phases = shape.num_layers * PHASES_PER_LAYER + OTHER_PHASES
        self._given = given = np.zeros(ARGUMENTS, np.int64)
        given[Argument.LAYERS] = self._blocks.ctypes.data
        given[Argument.FINAL_NORM] = final_norm.data_ptr()
        self._head = head
        given[Argument.HEAD] = self._head.ctypes.data
        given[Argument.SUMS] = team.sums.ctypes.data
        given[Argument.SUMS_STRIDE] = team.sums.shape[1]
        sizes = [self._head[MatrixField.ROUNDED_SIZE]]
        for at in MATRICES:
            sizes += list(blocks[:, at + MatrixField.ROUNDED_SIZE])
        self._rounded_size = int(max(sizes))
        self._scores = torch.empty(0)
        self._buffers: tuple[torch.Tensor, ...] = ()
        self._most_rows = 0

    @property
    def threads(self) -> int:
        """Threads that compute the next steps."""
        return self._team.threads

    @property
    def block_rows(self) -> int:
        """Rows of a sequence that share what they read of it, at most."""
        return int(self._given[Argument.BLOCK_ROWS])

    def join(self) -> None:
        """Wait for the end of the step that was started last, and help to compute it."""
        self._team.join()

    def start(
        self,
        stream: torch.Tensor,
        rows: PagedRows,
        wanted: NDArray[np.int64],
        draws: Draws | None = None,
    ) -> StepOutputs:
        """Start a step, whose outputs are complete after ``join``.

        Args:
            stream: embeddings of the tokens, float32, shape ``[rows, hidden]``; overwritten.
            rows: where they belong.
            wanted: indices of the rows that get logits, shape ``[wanted]``.
            draws: tokens that are drawn; None for the likeliest of all.
        """
        self._team.join()  # before its buffers are replaced by larger ones
        given, count, n = self._given, stream.shape[0], len(wanted)
        normed = torch.empty(count, self.shape.hidden)
        selected = torch.empty(n, self.shape.hidden)
        logits = torch.empty(n, self.shape.vocab)
        best, tokens = torch.empty(n), torch.empty(n, dtype=torch.int64)
        self._reserve(count, rows)
        # Two parts for each thread, or the last ones wait for one another.
        most = count * self.shape.num_kv_heads // (2 * self.threads)
        blocks = blocks_of(rows.lines, max(1, min(self.block_rows, most)))
        slots = rows.slots.ctypes.data
        is_shared = rows.positions is rows.slots
        visible, stride, drafts = 0, 0, slots
        if rows.visible is not None and rows.drafts is not None:
            visible, stride = rows.visible.ctypes.data, rows.visible.shape[1]
            drafts = rows.drafts.ctypes.data
        # At once: storing numbers one by one takes as long as all else here.
        given[_OF_STEP] = (
            *(count, n, stream.data_ptr(), normed.data_ptr()),
            *(slots if is_shared else rows.positions.ctypes.data, slots, rows.lines.ctypes.data),
            *(rows.table.ctypes.data, rows.table.shape[1], rows.pool.data_ptr()),
            *(wanted.ctypes.data, selected.data_ptr(), logits.data_ptr()),
            *(best.data_ptr(), tokens.data_ptr(), visible, stride, drafts),
            *(blocks.ctypes.data, len(blocks) - 1),
            *(_NO_DRAWS if draws is None else draws.addresses),
        )
        outputs = StepOutputs(normed, logits, best, tokens, draws)
        live = self, stream, rows, wanted, selected, outputs, blocks
        owners = self._blocks, self._head
        self._team.start(self._function, given, self._phases, live, owners)
        return outputs

    def _reserve(self, count: int, rows: PagedRows) -> None:
        """Grow the scratch memory of rows, and of the scores of their contexts."""
        shape, given = self.shape, self._given
        longest = rows.table.shape[1] * shape.page_size
        group = shape.num_heads // shape.num_kv_heads
        if longest + _ROUNDED // 2 > given[Argument.SCORES_STRIDE]:
            # The normaliser of a softmax is stored behind its last vector.
            longest = (longest // _ROUNDED + 2) * _ROUNDED
            of_block = max(1, min(_BLOCK_ROWS, _MOST_SCORES // (group * longest)))
            self._scores = torch.empty(self._team.size, of_block, group, longest)
            given[Argument.SCORES] = self._scores.data_ptr()
            given[Argument.SCORES_STRIDE] = longest
            given[Argument.BLOCK_ROWS] = of_block
        if count > self._most_rows:
            widths = {
                Argument.QKV: shape.qkv,
                Argument.ATTENDED: shape.num_heads * shape.head_dim,
                Argument.GATED: shape.intermediate,
                Argument.BRANCH: shape.hidden if shape.post_norms else 0,
                Argument.ROUNDED: self._rounded_size,
            }
            self._buffers = tuple(torch.empty(count, width) for width in widths.values())
            for at, buffer in zip(widths, self._buffers, strict=True):
                given[at] = buffer.data_ptr()
            self._most_rows = count


def blocks_of(lines: NDArray[np.int64], most: int) -> NDArray[np.int64]:
    """Return the bounds of blocks of at most ``most`` rows of one sequence, ``[blocks + 1]``."""
    count = len(lines)
    if lines[-1] == count - 1:
        return np.arange(count + 1)
    starts = np.flatnonzero(np.diff(lines, prepend=-1))
    sizes = np.diff(starts, append=count)
    within = np.arange(count) - np.repeat(starts, sizes)
    return np.append(np.flatnonzero(within % most == 0), count)
