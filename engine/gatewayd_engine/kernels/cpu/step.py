"""A fused step: all layers of a Llama-like decoder in one call, on all threads of a team.

A layer is eight or nine phases, each of which needs the results of the one before, and one more for
each product whose inputs are rounded; see ``team_code.Phases``. A row's numbers do not depend on
the thread that computes them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from llvmlite import ir

from gatewayd_engine.kernels.cpu.argmax import argmax, cap
from gatewayd_engine.kernels.cpu.attention import Block, GroupAttention, PagedHeads, Row
from gatewayd_engine.kernels.cpu.draw import draw
from gatewayd_engine.kernels.cpu.filtered_draw import FilteredDraw, Filters
from gatewayd_engine.kernels.cpu.heads import prepare_heads
from gatewayd_engine.kernels.cpu.jobs import ADD, GATES, STORE
from gatewayd_engine.kernels.cpu.matmul import share
from gatewayd_engine.kernels.cpu.norm import add_normalised, normalise
from gatewayd_engine.kernels.cpu.step_layout import (
    LAYER_SIZE,
    Argument,
    LayerField,
    MatrixField,
    StepShape,
)
from gatewayd_engine.kernels.cpu.team_code import Phases, call_address
from gatewayd_engine.kernels.llvm.builder import F32, F64, I8, I64, KernelFunction, Pointer, Value
from gatewayd_engine.kernels.llvm.processor import Processor


class _Step:
    """The function under construction, its arguments, and its phases."""

    def __init__(self, module: ir.Module, processor: Processor, shape: StepShape) -> None:
        self.f = KernelFunction(module, "step", [[I64], I64, I64], is_exported=True)
        given, thread, threads = self.f.arguments
        self.given: Pointer = given
        self.thread: Value = thread
        self.threads: Value = threads
        self.processor, self.shape, self.lanes = processor, shape, processor.lanes
        self.rows = self.given[Argument.ROWS]
        self.phases = Phases(self.f, processor, given)
        self.filtered = FilteredDraw(module, shape.vocab, processor.lanes)
        self.stream, self.normed = self.floats(Argument.STREAM), self.floats(Argument.NORMED)
        self.inputs = self.normed if shape.pre_norms else self.stream
        self.sums = self.own(Argument.SUMS, self.given[Argument.SUMS_STRIDE])
        self.scores_stride = self.given[Argument.SCORES_STRIDE]
        group = shape.num_heads // shape.num_kv_heads
        of_row = self.scores_stride * group
        self.scores = self.own(Argument.SCORES, of_row * self.given[Argument.BLOCK_ROWS])
        self.block: Pointer = self.given.pointer(Argument.LAYERS, I64)
        self.block_of_layer: Pointer = self.block

    def floats(self, index: Argument) -> Pointer:
        """Return an argument that is an address of float32 numbers."""
        return self.given.pointer(index, F32)

    def own(self, base: Argument, stride: Value) -> Pointer:
        """Return this thread's part of scratch memory."""
        return self.floats(base) + self.thread * stride

    @contextmanager
    def each_row(self) -> Iterator[Value]:
        """Emit a phase over rows."""
        with self.phases.parts(self.rows, 1) as (row, _):
            yield row

    def product(
        self,
        block: Pointer,
        rows: Value,
        x: Pointer,
        inputs: int,
        out: Pointer,
        outputs: int,
        epilogue: int,
    ) -> None:
        """Emit a phase that multiplies ``x`` with a matrix, after rounding it where it has to be.

        Args:
            block: of the matrix.
            rows: number of input rows.
            x: input rows.
            inputs: their size, which is their stride, too.
            out: output rows.
            outputs: their stride.
            epilogue: see ``matmul``.
        """
        f = self.f
        rounding, ldx = block[MatrixField.ROUNDING], f.variable(inputs)
        source = f.variable(x.number())
        with f.when(rounding.differs(0)):
            size, rounded = block[MatrixField.ROUNDED_SIZE], self.floats(Argument.ROUNDED)
            with self.phases.parts(rows, 1) as (row, _):
                line = self.row(x, row, inputs), rounded + row * size
                call_address(f, rounding, *line, block[MatrixField.INPUTS])
            source.set(rounded.number())
            ldx.set(size)
        count = block[MatrixField.OUTPUTS]
        panels = (count + (2 * self.lanes - 1)) // (2 * self.lanes)
        with self.phases.parts(panels, share(f, panels, self.threads)) as (first, end):
            call_address(
                f,
                block[MatrixField.FUNCTION],
                *(f.address(source.get(), F32), ldx.get(), rows),
                block.pointer(MatrixField.WEIGHTS, I8),
                *(block[MatrixField.INPUTS], block[MatrixField.GROUPS], count),
                block.pointer(MatrixField.BIAS, F32),
                *(out, f.index(outputs), f.index(epilogue), first, end, self.sums),
            )

    def matrix(self, at: LayerField) -> Pointer:
        """Return the block of a matrix of the layer."""
        return self.block_of_layer + at

    def weight(self, at: LayerField) -> Pointer:
        """Return the weight of a norm of the layer."""
        return self.block_of_layer.pointer(at, F32)

    def row(self, base: Pointer, row: Value, size: int) -> Pointer:
        """Return a row of a buffer."""
        return base + row * size


def add_step(module: ir.Module, processor: Processor, shape: StepShape) -> KernelFunction:
    """Add ``step(arguments, thread, threads)``, a job for a team; see ``step_layout``."""
    s = _Step(module, processor, shape)
    f = s.f
    with f.loop(0, shape.num_layers) as index:
        s.block_of_layer = s.block + index * LAYER_SIZE
        _norm(s, LayerField.NORM_ATTENTION, None)
        _attention(s, index)
        after = _branch(
            s,
            LayerField.OUT,
            s.floats(Argument.ATTENDED),
            shape.num_heads * shape.head_dim,
            LayerField.NORM_AFTER_ATTENTION,
        )
        _norm(s, LayerField.NORM_MLP, after)
        gated = s.floats(Argument.GATED)
        size = shape.intermediate
        s.product(
            s.matrix(LayerField.GATE_UP),
            s.rows,
            s.inputs,
            shape.hidden,
            gated,
            size,
            GATES[shape.activation],
        )
        after = _branch(s, LayerField.DOWN, gated, size, LayerField.NORM_AFTER_MLP)
        if after is not None:
            with s.each_row() as row:
                _add_branch(s, row, after)
    final = s.floats(Argument.FINAL_NORM)
    with s.each_row() as row:
        x, out = (s.row(base, row, shape.hidden) for base in (s.stream, s.normed))
        normalise(f, x, final, out, shape.hidden, s.lanes, shape.norm_eps)
    with f.when(s.given[Argument.NUM_WANTED] > 0):
        _logits(s)
    return f.finish()


def _logits(s: _Step) -> None:
    """Emit the head of the wanted rows, and the choice of their likeliest tokens."""
    f, shape, lanes = s.f, s.shape, s.lanes
    count, wanted = s.given[Argument.NUM_WANTED], s.given.pointer(Argument.WANTED, I64)
    selected, logits = s.floats(Argument.SELECTED), s.floats(Argument.LOGITS)
    with s.phases.parts(count, 1) as (item, _):
        source, copy = (
            s.row(s.normed, wanted[item], shape.hidden),
            s.row(selected, item, shape.hidden),
        )
        with f.loop(0, shape.hidden, lanes) as at:
            copy.store(source.vector(lanes, at), at)
    head = s.given.pointer(Argument.HEAD, I64)
    s.product(head, count, selected, shape.hidden, logits, shape.vocab, STORE)
    best, tokens = s.floats(Argument.BEST), s.given.pointer(Argument.TOKENS, I64)
    temperatures = s.floats(Argument.TEMPERATURES)
    with s.phases.parts(count, 1) as (item, _):
        row = s.row(logits, item, shape.vocab)
        if shape.logit_softcap is not None:
            cap(f, row, shape.vocab, lanes, shape.logit_softcap)
        largest, token = argmax(f, row, shape.vocab, lanes)
        best[item], tokens[item] = largest, token
        with f.when(temperatures.is_set()), f.when(temperatures[item] > 0.0):
            _draw(s, item, row, largest, tokens)


def _draw(s: _Step, item: Value, row: Pointer, largest: Value, tokens: Pointer) -> None:
    """Emit the choice of a random token of a row of logits."""
    f, temperature = s.f, s.floats(Argument.TEMPERATURES)[item]
    uniform = s.given.pointer(Argument.UNIFORMS, F64)[item]
    is_filtered = s.given.pointer(Argument.FILTERED, I8)[item]
    with f.when(is_filtered.equals(0)):
        tokens[item] = draw(f, row, s.shape.vocab, s.lanes, largest, temperature, uniform)
    with f.when(is_filtered.differs(0)):
        top_p, min_p = (s.floats(at)[item] for at in (Argument.TOP_P, Argument.MIN_P))
        filters = Filters(s.given.pointer(Argument.TOP_K, I64)[item], top_p, min_p)
        tokens[item] = s.filtered.emit(f, row, largest, temperature, uniform, filters)


def _norm(s: _Step, at: LayerField, after: LayerField | None) -> None:
    """Emit a norm of the residual stream, after adding a normalised branch if there is one."""
    if not s.shape.pre_norms and after is None:
        return
    with s.each_row() as row:
        if after is not None:
            _add_branch(s, row, after)
        if s.shape.pre_norms:
            x, out = (s.row(base, row, s.shape.hidden) for base in (s.stream, s.normed))
            normalise(s.f, x, s.weight(at), out, s.shape.hidden, s.lanes, s.shape.norm_eps)


def _branch(
    s: _Step, at: LayerField, x: Pointer, inputs: int, norm: LayerField
) -> LayerField | None:
    """Emit the product that ends a branch; returns the norm that still has to be applied to it."""
    hidden = s.shape.hidden
    if s.shape.post_norms:
        s.product(s.matrix(at), s.rows, x, inputs, s.floats(Argument.BRANCH), hidden, STORE)
        return norm
    s.product(s.matrix(at), s.rows, x, inputs, s.stream, hidden, ADD)
    return None


def _add_branch(s: _Step, row: Value, norm: LayerField) -> None:
    hidden = s.shape.hidden
    branch = s.row(s.floats(Argument.BRANCH), row, hidden)
    onto = s.row(s.stream, row, hidden)
    add_normalised(s.f, branch, s.weight(norm), onto, hidden, s.lanes, s.shape.norm_eps)


def _attention(s: _Step, layer: Value) -> None:
    f, shape, lanes = s.f, s.shape, s.lanes
    pool = PagedHeads(shape)
    qkv = s.floats(Argument.QKV)
    s.product(s.matrix(LayerField.QKV), s.rows, s.inputs, shape.hidden, qkv, shape.qkv, STORE)
    slots, lines = s.given.pointer(Argument.SLOTS, I64), s.given.pointer(Argument.LINES, I64)
    positions = s.given.pointer(Argument.POSITIONS, I64)
    table, pages = s.given.pointer(Argument.TABLE, I64), s.given[Argument.PAGES]
    keys = s.floats(Argument.POOL) + layer * pool.layer
    rope = s.block_of_layer.pointer(LayerField.ROPE, F32)
    rope_stride = s.block_of_layer[LayerField.ROPE_STRIDE]
    with s.each_row() as row:
        slot = slots[row]
        page = table[lines[row] * pages + slot // shape.page_size]
        own = keys + page * pool.page + slot % shape.page_size * pool.token
        rotation = rope + positions[row] * rope_stride
        prepare_heads(
            f,
            shape,
            lanes,
            s.row(qkv, row, shape.qkv),
            s.weight(LayerField.NORM_HEADS),
            rotation,
            own,
        )
    # All keys of a chunk are written: its later rows attend to the earlier ones.
    # Heads outside: rows that share pages of a prefix find them in the cache.
    bounds, blocks = s.given.pointer(Argument.BLOCKS, I64), s.given[Argument.NUM_BLOCKS]
    with s.phases.parts(blocks * shape.num_kv_heads, 1) as (item, _):
        head, block = item // blocks, item % blocks
        first = bounds[block]

        def row_of(index: Value) -> Row:
            return _row(s, first, index, head)

        GroupAttention(f, shape, s.processor).attend(
            Block(
                keys=keys + head * shape.head_dim,
                table=table + lines[first] * pages,
                count=bounds[block + 1] - first,
                row=row_of,
                stride=s.scores_stride,
            )
        )


def _row(s: _Step, first: Value, index: Value, head: Value) -> Row:
    """Return a KV head's part of a row of a block, whose first row is given."""
    f, shape, row = s.f, s.shape, first + index
    group = shape.num_heads // shape.num_kv_heads
    position = s.given.pointer(Argument.POSITIONS, I64)[row]
    window, visible = s.block_of_layer[LayerField.WINDOW], s.given[Argument.VISIBLE]
    # A window counts positions: drafts of a tree have those of their depth, not of their slot.
    least = f.most(position + 1 - window, 0)
    mask = visible + row * s.given[Argument.VISIBLE_STRIDE]
    size = group * shape.head_dim
    return Row(
        query=s.row(s.floats(Argument.QKV), row, shape.qkv) + head * size,
        first=f.choose(window > 0, least, f.index(0)),
        end=s.given.pointer(Argument.SLOTS, I64)[row] + 1,
        visible=f.address(f.choose(visible.equals(0), visible, mask), I8),
        drafts=s.given.pointer(Argument.DRAFTS, I64)[row],
        scores=s.scores + index * (s.scores_stride * group),
        out=s.row(s.floats(Argument.ATTENDED), row, shape.num_heads * shape.head_dim) + head * size,
    )
