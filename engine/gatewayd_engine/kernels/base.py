"""What the small kernels do, whatever they are written in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from gatewayd_engine.kernels.experts.base import ExpertKernels
from gatewayd_engine.kernels.quantized.base import Activation, Products
from gatewayd_engine.kernels.verification.base import Verifying

if TYPE_CHECKING:
    import torch

    from gatewayd_engine.kernels.attention.splits import SharedPages
    from gatewayd_hooks.resources import PenaltyColumns


@dataclass(frozen=True, slots=True)
class SamplingColumns:
    """How each row wants its tokens drawn; device tensors of shape ``[rows]``.

    Attributes:
        temperature: float32; below 1e-7 the likeliest token is taken.
        top_k: keep the k likeliest, 0 for all, int32.
        top_p: keep the fewest likeliest tokens that reach this probability, float32.
        min_p: keep tokens at least this likely relative to the likeliest, float32.
        seed: the bits of a uint64, as int64.
    """

    temperature: torch.Tensor
    top_k: torch.Tensor
    top_p: torch.Tensor
    min_p: torch.Tensor
    seed: torch.Tensor


class Kernels(Products, ExpertKernels, Verifying, Protocol):
    """The kernels of a device.

    All compute in float32 and round once to the type of what they write, unless told otherwise.
    None asks the device for anything: shapes alone decide what is launched, so that each can be
    captured in a CUDA graph. Tensors are dense in their last dimension; others may be strided.
    Activations and logits are float32 or bfloat16.

    Attributes:
        can_launch_early: whether the device has early launches.
        launches_early: whether kernels that follow one another in each step are launched early;
            see ``early.py``. They compute the same.
    """

    can_launch_early: bool
    launches_early: bool

    def add_rms_norm(
        self, x: torch.Tensor, delta: torch.Tensor | None, weight: torch.Tensor, eps: float
    ) -> torch.Tensor:
        """Add onto the residual stream, then scale it to a root mean square of one.

        Args:
            x: the stream, shape ``[n, size]``; ``delta`` is added in place, rounded to its type,
                and what is normalised is the rounded sum.
            delta: same shape and type, or None for nothing.
            weight: float32, shape ``[size]``, with whatever offset the model adds to it.
            eps: added to the mean square.

        Returns:
            The normalised stream times the weight, a new tensor of the type of ``x``.
        """

    def norm_mm(
        self,
        x: torch.Tensor,
        scale: torch.Tensor,
        eps: float,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        act: Activation | None,
        out: torch.Tensor,
    ) -> None:
        """Multiply a few lines of the residual stream, normed, and perhaps gate what comes out.

        What ``add_rms_norm`` without ``delta``, a product and ``gated`` would make, rounded less
        often: the norm's divisor is applied to the sums.

        Args:
            x: the stream, shape ``[n, columns]``, ``n`` at most 16; not changed.
            scale: the norm's weight, float32, shape ``[columns]``.
            eps: added to the mean square.
            weight: shape ``[rows, columns]``, or with a gate ``[2 * rows, columns]``.
            bias: of as many rows, or None for nothing.
            act: the function of the gate; None for no gate.
            out: all of it is written, shape ``[n, rows]``.
        """

    def norm_heads(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> None:
        """Scale each head to a root mean square of one, in place.

        Args:
            x: shape ``[n, heads, head_dim]``, a slice of something larger if need be.
            weight: float32, shape ``[heads, head_dim]``.
            eps: added to the mean square.
        """

    def gated(self, gate_up: torch.Tensor, act: Activation) -> torch.Tensor:
        """A function of the first half, rounded, times the second half.

        Args:
            gate_up: shape ``[n, 2 * size]``.
            act: the function.

        Returns:
            A new tensor, shape ``[n, size]``.
        """

    def rope_append(
        self,
        heads: torch.Tensor,
        table: torch.Tensor,
        positions: torch.Tensor,
        write: torch.Tensor,
        pool: torch.Tensor,
        layer: int,
        num_heads: int,
        keeps_keys: bool = False,
    ) -> None:
        """Rotate queries in place; write rotated keys, and values, to their pages.

        Args:
            heads: queries, keys and values as the projection left them, shape
                ``[num_tokens, num_heads + 2 * kv_heads, head_dim]``, neighbours paired. Values
                stay as they are.
            table: cosines, then sines, of the angles at each position, float32, shape
                ``[max_len, rotary_dim]``; dimensions from ``rotary_dim`` on are not rotated.
            positions: int64, shape ``[num_tokens]``.
            write: page * page size + offset, int64, shape ``[num_tokens]``.
            pool: shape ``[pages, layers, 2, page_size, kv_heads, head_dim]``, of the type of
                ``heads``, or floats of 8 bits: numbers beyond their largest become that.
            layer: whose keys and values they are.
            num_heads: query heads.
            keeps_keys: whether keys are rotated in place as well; else they stay as they are.
        """

    def decode_attention(
        self,
        query: torch.Tensor,
        keys_values: torch.Tensor,
        page_indptr: torch.Tensor,
        pages: torch.Tensor,
        last_page_len: torch.Tensor,
        out: torch.Tensor,
        *,
        scale: float,
        softcap: float | None,
        window: int,
        sinks: torch.Tensor | None,
        width: int,
        num_queries: torch.Tensor | None,
        ancestors: torch.Tensor | None,
        splits: int,
        scratch: torch.Tensor | None,
        shared: SharedPages | None = None,
    ) -> None:
        """Attend the last queries of each line to its pages, which have their keys already.

        Lengths are read on the device alone, so one capture serves steps of all lengths. Answers
        are the same each time. Weights are rounded to the type of queries before they meet values.

        Args:
            query: ``width`` queries of each line, one line behind another, of a type of 2 or 4
                bytes, shape ``[lines * width, num_heads, head_dim]``; heads may be those of a
                wider tensor.
            keys_values: a layer's keys, then its values, of the type of ``query`` or floats of 8
                bits, shape ``[pages, 2, page_size, kv_heads, head_dim]``; ``kv_heads`` divides
                ``num_heads``, and keys and values have the same strides.
            page_indptr: where each line's pages begin, int32, shape ``[lines + 1]``.
            pages: int32, at least ``[page_indptr[-1]]``.
            last_page_len: tokens in each line's last page, those of this step included, int32,
                shape ``[lines]``.
            out: all of it is written, of the shape and type of ``query``.
            scale: factor on scores.
            softcap: scores become ``softcap * tanh(scores / softcap)``; None for none.
            window: how many of the latest positions a query sees, itself included; 0 for all.
            sinks: scores without a value that each head's softmax counts, float32, shape
                ``[num_heads]``; None for none. Source: gpt-oss.
            width: queries of each line, 1 to 64.
            num_queries: how many of them there are; others are answered with zeros, int32, shape
                ``[lines]``. None: all of them.
            ancestors: which of the line's queries a query sees, bit by bit, itself included, in
                a draft tree whose nodes stand behind their ancestors, int64, shape
                ``[lines * width]``; its position is behind as many as it sees. None: those before
                it.
            splits: how many parts a context is split into, at most; see ``splits.num_splits``.
            scratch: for partial answers, float32, at least ``splits.scratch_size``; None if
                ``splits`` is 1 and nothing is shared.
            shared: pages that all lines begin with, with ``width`` 1 and no window; None if
                there are none. Lines of padding, which do not begin so, get answers of no meaning.
        """

    def gather(
        self,
        rows: torch.Tensor,
        query_indptr: torch.Tensor,
        page_indptr: torch.Tensor,
        starts: torch.Tensor,
        given: torch.Tensor,
        last_tokens: torch.Tensor,
        block_table: torch.Tensor,
        page_size: int,
        max_tokens: int,
        ids: torch.Tensor,
        positions: torch.Tensor,
        write: torch.Tensor,
        pages: torch.Tensor,
    ) -> None:
        """Make the inputs of a step from what was uploaded and what the rows hold.

        What lies behind the last line's tokens and pages is not written.

        Args:
            rows: each line's row, int32, shape ``[lines]``.
            query_indptr: where each line's tokens begin, int32, shape ``[lines + 1]``.
            page_indptr: where each line's pages begin, int32, shape ``[lines + 1]``.
            starts: position of each line's first token, int32, shape ``[lines]``.
            given: ids of tokens, -1 for the last token of the line's row, int32, shape
                ``[num_tokens]``.
            last_tokens: int32 or int64, shape ``[rows]``.
            block_table: int32, shape ``[rows, max_pages]``.
            page_size: tokens per page.
            max_tokens: no line has more of them; 1 if all decode.
            ids: filled, int64, at least ``[num_tokens]``.
            positions: filled, int64, at least ``[num_tokens]``.
            write: filled with page * page size + offset, int64, at least ``[num_tokens]``.
            pages: filled with one line's pages after another's, int32, at least
                ``[page_indptr[-1]]``.
        """

    def sample(
        self,
        logits: torch.Tensor,
        rows: torch.Tensor,
        positions: torch.Tensor,
        columns: SamplingColumns,
        chosen: torch.Tensor | None = None,
        last_tokens: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Choose a token for each line of logits.

        Temperature acts first, then top-k, then top-p on what top-k left, then min-p; tokens as
        likely as the last that is kept are kept too. What is drawn depends on the logits, the
        row's columns and the position, not on the rest of the batch. Filters are left out for
        lines whose largest logit is not finite.

        Args:
            logits: shape ``[n, vocab]``, minus infinity for tokens that must not be drawn.
            rows: whose they are, int32, shape ``[n]``.
            positions: of the tokens to choose, int32 or int64, shape ``[n]``.
            columns: the rows' parameters.
            chosen: where the answer goes, int32, shape ``[2, n]``: the tokens, then the bits of
                the largest logits; None for new tensors.
            last_tokens: gets the token of each line at its row, int32, shape ``[rows]``; of lines
                with one row, any. None for nothing.

        Returns:
            The tokens, int32 ``[n]``, always valid ids; and the largest logits, float32 ``[n]``:
            NaN if there is one anywhere in the line. Views of ``chosen`` if that is given.
        """

    def logprobs(
        self, logits: torch.Tensor, tokens: torch.Tensor, num_top: int
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Log-probabilities of chosen tokens and of the likeliest.

        Args:
            logits: shape ``[n, vocab]``.
            tokens: the chosen ones, int32 or int64, shape ``[n]``.
            num_top: how many of the likeliest to report.

        Returns:
            The chosen tokens' log-probabilities, float32 ``[n]``; 1 + how many tokens are
            likelier, int32 ``[n]``; log-probabilities of the likeliest, in descending order,
            float32 ``[n, num_top]``, and their ids, int64 ``[n, num_top]``.
        """

    def mask(self, logits: torch.Tensor, bitmask: torch.Tensor, lines: torch.Tensor) -> None:
        """Forbid tokens, in place: their logits become minus infinity.

        Args:
            logits: shape ``[n, vocab]``.
            bitmask: int32, shape ``[m, ceil(vocab / 32)]``; bit ``t % 32`` of word ``t // 32``
                is set if token ``t`` is allowed.
            lines: the line of logits that each line of the mask is for, int32 or int64 ``[m]``.
        """

    def penalise(
        self,
        logits: torch.Tensor,
        lines: torch.Tensor,
        rows: torch.Tensor,
        columns: PenaltyColumns,
    ) -> None:
        """Penalise tokens that have been seen, in place: first repetition, then the others.

        Args:
            logits: shape ``[n, vocab]``.
            lines: lines of logits, no line twice, int32 or int64, shape ``[m]``.
            rows: whose they are, int32 or int64, shape ``[m]``; rows without a line in either
                table are left as they are.
            columns: what the rows have seen, and their penalties.
        """
