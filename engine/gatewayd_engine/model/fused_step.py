"""Fused steps of a decoder on a CPU: all layers in one compiled call; see ``kernels.cpu.step``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from gatewayd_engine.kernels.cpu.code import step_code
from gatewayd_engine.kernels.cpu.step_layout import (
    ARGUMENTS,
    LAYER_SIZE,
    MATRICES,
    OTHER_PHASES,
    PHASES_PER_LAYER,
    Argument,
    LayerField,
    MatrixField,
    StepShape,
)
from gatewayd_engine.model.decoder import Attention
from gatewayd_engine.model.layers import FeedForward, HeadNorm, ProjectionNorm, RMSNorm, Unnormed
from gatewayd_engine.model.linears.panel_linear import PanelLinear

if TYPE_CHECKING:
    from gatewayd_engine.model.decoder import Decoder, DecoderLayer
    from gatewayd_engine.model.rotary_embedding import Rotary

_OF_STEP = np.array(
    (
        *(Argument.ROWS, Argument.NUM_WANTED, Argument.STREAM, Argument.NORMED),
        *(Argument.POSITIONS, Argument.SLOTS, Argument.LINES),
        *(Argument.TABLE, Argument.PAGES, Argument.POOL),
        *(Argument.WANTED, Argument.SELECTED, Argument.LOGITS),
        *(Argument.BEST, Argument.TOKENS),
        *(Argument.VISIBLE, Argument.VISIBLE_STRIDE, Argument.DRAFTS),
        *(Argument.BLOCKS, Argument.NUM_BLOCKS, Argument.TEMPERATURES, Argument.UNIFORMS),
    )
)
"""Arguments that change with each step."""
_ROUNDED = 64
"""Contexts are rounded up to this many slots, so that scratch memory seldom grows."""
_BLOCK_ROWS = 16
"""Rows of a sequence that read its keys and values once, at most."""
_MOST_SCORES = 1 << 20
"""Scores of a thread's block, at most, unless a single row has more: 4 MiB."""


@dataclass(frozen=True, slots=True, eq=False)
class StepOutputs:
    """What a step has computed.

    Attributes:
        hidden: after the final norm, shape ``[rows, hidden]``.
        logits: of the wanted rows, float32, shape ``[wanted, vocab]``.
        best: the largest logit of each, NaN if any of them is, shape ``[wanted]``.
        tokens: index of that, or the token that was drawn, int64, shape ``[wanted]``.
        is_drawn: whether tokens were drawn, shape ``[wanted]``; None if none was.
    """

    hidden: torch.Tensor
    logits: torch.Tensor
    best: torch.Tensor
    tokens: torch.Tensor
    is_drawn: NDArray[np.bool_] | None = None


@dataclass(frozen=True, slots=True)
class PagedRows:
    """The rows of a step and the pages that they attend to.

    Attributes:
        positions: of the rotary embedding, shape ``[rows]``.
        slots: of the KV cache, by sequence, shape ``[rows]``.
        lines: sequence of each row, shape ``[rows]``.
        table: pages, shape ``[sequences, pages]``.
        pool: keys and values, shape ``[pages, layers, 2, page_size, kv_heads, head_dim]``.
        visible: whether each row attends to each slot from ``drafts`` on, shape ``[rows, n]``;
            None where drafts are no trees.
        drafts: shape ``[rows]``.
    """

    positions: NDArray[np.int64]
    slots: NDArray[np.int64]
    lines: NDArray[np.int64]
    table: NDArray[np.int64]
    pool: torch.Tensor
    visible: NDArray[np.uint8] | None = None
    drafts: NDArray[np.int64] | None = None


@dataclass(frozen=True, slots=True)
class Draws:
    """Tokens that a step draws at random, without filters.

    Attributes:
        temperature: above 0; 0 for the likeliest token. Shape ``[wanted]``.
        uniform: numbers in [0, 1), shape ``[wanted]``.
    """

    temperature: NDArray[np.float32]
    uniform: NDArray[np.float64]


class FusedStep:
    """Calls of the compiled step of one decoder and page size.

    Args:
        decoder: owns the weights.
        shape: of its steps.
        blocks: addresses and sizes of each layer, shape ``[layers, LAYER_SIZE]``.
        final_norm: weight of the norm of the hidden states.
        head: whose team computes the steps.

    Attributes:
        shape: as given.
    """

    def __init__(
        self,
        decoder: Decoder,
        shape: StepShape,
        blocks: NDArray[np.int64],
        final_norm: torch.Tensor,
        head: PanelLinear,
    ) -> None:
        team = head.team
        self._decoder = decoder
        self.shape = shape
        self._team = team
        self._function = step_code(team.processor, shape).address("step")
        self._blocks = blocks
        self._phases = shape.num_layers * PHASES_PER_LAYER + OTHER_PHASES
        self._given = given = np.zeros(ARGUMENTS, np.int64)
        given[Argument.LAYERS] = self._blocks.ctypes.data
        given[Argument.FINAL_NORM] = final_norm.data_ptr()
        self._head = np.zeros(len(MatrixField), np.int64)
        _describe(head, self._head)
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

    def run(
        self,
        stream: torch.Tensor,
        rows: PagedRows,
        wanted: NDArray[np.int64],
        draws: Draws | None = None,
    ) -> StepOutputs:
        """Compute a step; see ``start``."""
        outputs = self.start(stream, rows, wanted, draws)
        self.join()
        return outputs

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
        temperatures, uniforms, is_drawn = 0, 0, None
        if draws is not None:
            is_drawn = draws.temperature > 0
            temperatures, uniforms = draws.temperature.ctypes.data, draws.uniform.ctypes.data
        # At once: storing numbers one by one takes as long as all else here.
        given[_OF_STEP] = (
            *(count, n, stream.data_ptr(), normed.data_ptr()),
            *(slots if is_shared else rows.positions.ctypes.data, slots, rows.lines.ctypes.data),
            *(rows.table.ctypes.data, rows.table.shape[1], rows.pool.data_ptr()),
            *(wanted.ctypes.data, selected.data_ptr(), logits.data_ptr()),
            *(best.data_ptr(), tokens.data_ptr(), visible, stride, drafts),
            *(blocks.ctypes.data, len(blocks) - 1, temperatures, uniforms),
        )
        outputs = StepOutputs(normed, logits, best, tokens, is_drawn)
        live = self, stream, rows, wanted, selected, outputs, blocks, draws
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


def fused_step(decoder: Decoder, page_size: int) -> FusedStep | None:
    """Return the fused step of a decoder; None if its layers or sizes have none."""
    spec, head, final = decoder.spec, decoder.head, decoder.norm
    norms = spec.family.norms
    of_layers = zip(decoder.layers, spec.windows, decoder.rotaries, strict=True)
    blocks = [_block(*each) for each in of_layers]
    if not (isinstance(head, PanelLinear) and isinstance(final, RMSNorm)):
        return None
    if decoder.sinks is not None:
        return None
    shape = StepShape(
        num_layers=spec.num_layers,
        hidden=spec.hidden_size,
        num_heads=spec.num_heads,
        num_kv_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        intermediate=spec.intermediate_size,
        rotary_dim=spec.rope.rotary_dim,
        norm_eps=spec.norm_eps,
        scale=spec.attention_scale,
        softcap=spec.attention_softcap,
        activation=spec.activation,
        qk_norm=None if spec.family.qk_norm == "unit" else spec.family.qk_norm,
        pre_norms=norms.before_attention is not None,
        post_norms=norms.after_attention is not None,
        page_size=page_size,
        vocab=spec.vocab_size,
        logit_softcap=spec.logit_softcap,
    )
    found = [block for block in blocks if block is not None]
    is_alike = spec.query_scale is None and spec.family.qk_norm != "unit"
    if len(found) < len(blocks) or not is_alike or not shape.fits(head.team.processor.lanes):
        return None
    return FusedStep(decoder, shape, np.stack(found), final.weight, head)


def _block(layer: DecoderLayer, window: int, rotary: Rotary) -> NDArray[np.int64] | None:
    """Return a layer's addresses and sizes, as ``step_layout.LayerField`` orders them.

    None if one of its operations is none that a fused step computes.
    """
    attention, mlp = layer.attention, layer.mlp
    if not isinstance(attention, Attention) or not isinstance(mlp, FeedForward):
        return None
    block = np.zeros(LAYER_SIZE, np.int64)
    products = (
        (LayerField.QKV, attention.entry),
        (LayerField.OUT, attention.out),
        (LayerField.GATE_UP, mlp.entry),
        (LayerField.DOWN, mlp.down),
    )
    for at, linear in products:
        if not isinstance(linear, PanelLinear) or linear.is_gated != (at == LayerField.GATE_UP):
            return None
        _describe(linear, block[at:])
    norms: tuple[tuple[LayerField, object], ...] = (
        (LayerField.NORM_ATTENTION, layer.before_attention),
        (LayerField.NORM_MLP, layer.before_mlp),
        (LayerField.NORM_AFTER_ATTENTION, layer.after_attention),
        (LayerField.NORM_AFTER_MLP, layer.after_mlp),
        (LayerField.NORM_HEADS, attention.qk_norm),
    )
    for place, norm in norms:
        if isinstance(norm, RMSNorm | HeadNorm | ProjectionNorm):
            block[place] = norm.weight.data_ptr()
        elif norm is not None and not isinstance(norm, Unnormed):
            return None
    rope = rotary.by_pair()
    block[LayerField.WINDOW] = window
    block[LayerField.ROPE], block[LayerField.ROPE_STRIDE] = rope.data_ptr(), rope.stride(0)
    return block


def _describe(linear: PanelLinear, block: NDArray[np.int64]) -> None:
    """Write the address and sizes of a matrix to the start of a block; see ``MatrixField``."""
    panels = linear.panels
    block[MatrixField.FUNCTION] = linear.function
    block[MatrixField.WEIGHTS] = panels.data.data_ptr()
    block[MatrixField.BIAS] = 0 if linear.bias is None else linear.bias.data_ptr()
    block[MatrixField.INPUTS] = panels.inputs
    block[MatrixField.GROUPS] = panels.groups
    block[MatrixField.OUTPUTS] = panels.outputs
    block[MatrixField.ROUNDING] = linear.rounding
    block[MatrixField.ROUNDED_SIZE] = linear.rounded_size
