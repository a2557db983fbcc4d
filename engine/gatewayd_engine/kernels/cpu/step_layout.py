"""Arguments of a fused step: what is compiled in, and the numbers in memory that it reads."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Literal


@dataclass(frozen=True, slots=True)
class StepShape:
    """What a step's code is compiled for.

    Attributes:
        num_layers, hidden, num_heads, num_kv_heads, head_dim: of the model.
        intermediate: of the feed-forward part.
        rotary_dim: leading dimensions of each head that are rotated, adjacent ones paired.
        norm_eps: added to mean squares.
        scale: factor of the attention scores.
        softcap: of the attention scores; None for none.
        activation: of the feed-forward part.
        qk_norm: what is normalised before rotary; see ``Family``.
        pre_norms: whether inputs of attention and feed-forward are normalised.
        post_norms: whether outputs of attention and feed-forward are normalised.
        page_size: KV slots of a page.
        vocab: number of logits.
        logit_softcap: of the logits; None for none.
    """

    num_layers: int
    hidden: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate: int
    rotary_dim: int
    norm_eps: float
    scale: float
    softcap: float | None
    activation: str
    qk_norm: Literal["head", "projection"] | None
    pre_norms: bool
    post_norms: bool
    page_size: int
    vocab: int
    logit_softcap: float | None

    @property
    def qkv(self) -> int:
        """Width of the QKV projection."""
        return (self.num_heads + 2 * self.num_kv_heads) * self.head_dim

    def fits(self, lanes: int) -> bool:
        """Whether the sizes are multiples of a vector's lanes, as the kernels need."""
        sizes = [self.hidden, self.head_dim, self.rotary_dim, self.intermediate]
        if self.logit_softcap is not None:
            sizes.append(self.vocab)
        return all(size % lanes == 0 for size in sizes) and self.page_size % lanes == 0


class Argument(IntEnum):
    """Index of a step's argument, most of them addresses.

    ``STREAM``: residual stream ``[rows, hidden]``, overwritten. ``NORMED``: ``[rows, hidden]``, the
    result is here. ``QKV``, ``ATTENDED``, ``GATED``, ``BRANCH``: scratch of as many rows.
    ``POSITIONS``: of the rotary embedding, ``SLOTS``: of the KV cache, ``LINES``: sequence of each
    row, all ``[rows]``. ``TABLE``: pages ``[lines, PAGES]``. ``VISIBLE``: bytes ``[rows,
    VISIBLE_STRIDE]``, whether each slot from ``DRAFTS`` on, which is ``[rows]``, is attended to;
    null where drafts are no trees. ``LAYERS``: see ``LayerField``. ``FINAL_NORM``: its weight.
    ``BLOCKS``: first row of each block of rows of one sequence, which share what they read of it,
    and the number of rows, ``[NUM_BLOCKS + 1]``. ``SCORES``: scratch, ``SCORES_STRIDE`` numbers for
    each thread, each of ``BLOCK_ROWS`` rows, which a block has at most, and each query head of a
    KV head.
    ``SUMS``: scratch, ``SUMS_STRIDE`` numbers for each thread. ``WANTED``: the ``NUM_WANTED`` rows
    of the result that get logits, copied to ``SELECTED``. ``HEAD``: block of the head's matrix.
    ``LOGITS``: ``[wanted, vocab]``; ``BEST`` and ``TOKENS``: the largest of each and its index,
    ``[wanted]``; where one of ``TEMPERATURES``, float32 ``[wanted]``, is above 0, a token drawn by
    its number of ``UNIFORMS``, float64, among those that ``TOP_K``, int64, ``TOP_P`` and ``MIN_P``,
    float32, keep where ``FILTERED``, bytes, is not 0; all null where none is drawn. ``ROUNDED``:
    scratch for the rounded inputs of a product, the widest of them for as many rows.
    """

    ROWS = 0
    STREAM = 1
    NORMED = 2
    QKV = 3
    ATTENDED = 4
    GATED = 5
    BRANCH = 6
    POSITIONS = 7
    SLOTS = 8
    LINES = 9
    TABLE = 10
    PAGES = 11
    POOL = 12
    LAYERS = 13
    FINAL_NORM = 14
    SCORES = 15
    SCORES_STRIDE = 16
    SUMS = 17
    SUMS_STRIDE = 18
    VISIBLE = 19
    VISIBLE_STRIDE = 20
    DRAFTS = 21
    WANTED = 22
    NUM_WANTED = 23
    SELECTED = 24
    HEAD = 25
    LOGITS = 26
    BEST = 27
    TOKENS = 28
    ROUNDED = 29
    BLOCKS = 30
    NUM_BLOCKS = 31
    BLOCK_ROWS = 32
    TEMPERATURES = 33
    UNIFORMS = 34
    FILTERED = 35
    TOP_K = 36
    TOP_P = 37
    MIN_P = 38


ARGUMENTS = len(Argument)


class MatrixField(IntEnum):
    """Index of a number of a matrix within its layer's block.

    ``ROUNDING``: address of the function that rounds a row of inputs; 0 where they stay floats.
    ``ROUNDED_SIZE``: of such a row, in numbers of 32 bits.
    """

    FUNCTION = 0
    WEIGHTS = 1
    BIAS = 2
    INPUTS = 3
    GROUPS = 4
    OUTPUTS = 5
    ROUNDING = 6
    ROUNDED_SIZE = 7


class LayerField(IntEnum):
    """Index of a number in a layer's block: four matrices, norms' weights, the sliding window.

    ``ROPE``: cosines and sines, ``rotary_dim / 2`` pairs for each position. ``ROPE_STRIDE``:
    numbers from one position to the next, 0 where all rotate alike.
    """

    QKV = 0
    OUT = 8
    GATE_UP = 16
    DOWN = 24
    NORM_ATTENTION = 32
    NORM_MLP = 33
    NORM_AFTER_ATTENTION = 34
    NORM_AFTER_MLP = 35
    NORM_HEADS = 36
    WINDOW = 37
    ROPE = 38
    ROPE_STRIDE = 39


MATRICES = (LayerField.QKV, LayerField.OUT, LayerField.GATE_UP, LayerField.DOWN)
LAYER_SIZE = 40
PHASES_PER_LAYER = 13
"""At most."""
OTHER_PHASES = 5
"""The last norm, the selection of rows, their rounding, the head, and their tokens."""
