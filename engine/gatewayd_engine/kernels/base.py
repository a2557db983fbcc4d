"""Protocol of the fused kernels, implemented in Triton and in torch.

Each operation is documented here, once; implementations refer to it. In a step, *sequence* is one
sequence of the batch, and *row* is the index at which the runner keeps its state between steps
(block table, last token, sampling parameters).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from gatewayd_engine.kernels.experts.base import ExpertKernels
from gatewayd_engine.kernels.quantized.base import Activation, QuantizedKernels
from gatewayd_engine.kernels.verification.base import VerificationKernels

if TYPE_CHECKING:
    import torch

    from gatewayd_engine.kernels.attention.splits import SharedPages
    from gatewayd_hooks.resources import PenaltyColumns


@dataclass(frozen=True, slots=True)
class SamplingColumns:
    """Sampling parameters of each row; device tensors of shape ``[rows]``.

    Attributes:
        temperature: float32; below 1e-7 sampling is greedy.
        top_k: int32; keep the k likeliest tokens, 0 for all.
        top_p: float32; keep the smallest set of likeliest tokens that reaches this probability.
        min_p: float32; keep tokens at least this likely relative to the likeliest.
        seed: the bits of a uint64, as int64.
    """

    temperature: torch.Tensor
    top_k: torch.Tensor
    top_p: torch.Tensor
    min_p: torch.Tensor
    seed: torch.Tensor


class Kernels(QuantizedKernels, ExpertKernels, VerificationKernels, Protocol):
    """Fused kernels of a device.

    All compute in float32 and round once to the dtype of their output, unless documented otherwise.
    None synchronises with the device: launches depend on shapes alone, so each can be captured in
    a CUDA graph. Tensors are dense in their last dimension; others may be strided. Activations and
    logits are float32 or bfloat16.

    Attributes:
        can_launch_early: whether the device supports programmatic dependent launch.
        launches_early: whether consecutive kernels of a step use programmatic dependent launch;
            see ``early_launch``. Results are the same.
    """

    can_launch_early: bool
    launches_early: bool

    def add_rms_norm(
        self, x: torch.Tensor, delta: torch.Tensor | None, weight: torch.Tensor, eps: float
    ) -> torch.Tensor:
        """Add ``delta`` to the residual stream and apply RMSNorm.

        Args:
            x: residual stream, shape ``[n, size]``; ``delta`` is added in place, rounded to its
                dtype, and the rounded sum is normalised.
            delta: same shape and dtype, or None to add nothing.
            weight: float32, shape ``[size]``, with the model's offset (if any) already added.
            eps: added to the mean square.

        Returns:
            The normalised stream times the weight, a new tensor of the dtype of ``x``.
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
        """Apply RMSNorm, a matrix product and optionally a gated activation to a few tokens.

        Equals ``add_rms_norm`` without ``delta``, a matrix product and ``gated``, but rounds less
        often: the norm's divisor is applied to the sums.

        Args:
            x: residual stream, shape ``[n, columns]``, ``n`` at most 16; not changed.
            scale: weight of the norm, float32, shape ``[columns]``.
            eps: added to the mean square.
            weight: shape ``[rows, columns]``, or ``[2 * rows, columns]`` with a gate.
            bias: one number per row of ``weight``, or None.
            act: activation of the gate; None for no gate.
            out: fully overwritten, shape ``[n, rows]``.
        """

    def norm_heads(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> None:
        """Apply RMSNorm to each head, in place.

        Args:
            x: shape ``[n, heads, head_dim]``; may be a slice of a larger tensor.
            weight: float32, shape ``[heads, head_dim]``.
            eps: added to the mean square.
        """

    def gated(self, gate_up: torch.Tensor, act: Activation) -> torch.Tensor:
        """Return ``act(gate) * up``, rounding ``act(gate)`` to the dtype of the input.

        Args:
            gate_up: gates, then the values they scale, shape ``[n, 2 * size]``.
            act: activation function.

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
        first: int = 0,
    ) -> None:
        """Apply rotary embedding to queries in place and append keys and values to KV pages.

        Args:
            heads: queries, keys and values of the QKV projection, shape
                ``[num_tokens, num_heads + 2 * kv_heads, head_dim]``, with adjacent dimensions
                paired (interleaved). Values are not rotated; where keys serve as values, there are
                none.
            table: cosine and sine of each pair's angle at each position, adjacent as the pair's
                dimensions are, float32, shape ``[max_len, rotary_dim]``; rows may be the same one.
                Other dimensions are not rotated.
            positions: int64, shape ``[num_tokens]``.
            write: KV slot (page * page size + offset) of each token, int64, shape
                ``[num_tokens]``.
            pool: shape ``[pages, layers, parts, page_size, kv_heads, head_dim]``, where parts are
                2, or 1 if keys serve as values; of the dtype of ``heads``, or 8-bit floats: numbers
                beyond their range saturate.
            layer: layer of the keys and values.
            num_heads: query heads.
            keeps_keys: whether keys are rotated in ``heads`` as well; otherwise they are left
                unrotated there.
            first: first of the rotated dimensions, even.
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
        chunked: bool = False,
    ) -> None:
        """Compute paged decode attention of the last queries of each sequence.

        The keys and values of this step are in the pages already. Lengths are read on the device
        alone, so one capture serves steps of all lengths. Results are deterministic. Attention
        weights are rounded to the dtype of the queries before they multiply values.

        Args:
            query: ``width`` queries of each sequence, sequence by sequence, of a dtype of 2 or 4
                bytes, shape ``[sequences * width, num_heads, head_dim]``; may be a slice of the
                heads of a wider tensor.
            keys_values: a layer's keys, then its values, of the dtype of ``query`` or 8-bit
                floats, shape ``[pages, 2, page_size, kv_heads, head_dim]``; ``kv_heads`` divides
                ``num_heads``, and keys and values have the same strides. With one part instead of
                two, a value is the beginning of its key, as in latent attention.
            page_indptr: where each sequence's pages begin, int32, shape ``[sequences + 1]``.
            pages: int32, at least ``[page_indptr[-1]]``.
            last_page_len: tokens in each sequence's last page, including those of this step,
                int32, shape ``[sequences]``.
            out: fully overwritten, of the dtype of ``query``, shape
                ``[sequences * width, num_heads, value_dim]``; ``value_dim`` is ``head_dim`` unless
                values are beginnings of keys.
            scale: factor on scores.
            softcap: scores become ``softcap * tanh(scores / softcap)``; None for none.
            window: sliding window: how many of the latest positions a query sees, itself included;
                0 for all.
            sinks: attention-sink logits, which each head's softmax counts without a value, float32,
                shape ``[num_heads]``; None for none. Source: gpt-oss.
            width: queries of each sequence, 1 to 64.
            num_queries: how many of them are not padding; padding queries get zeros, int32, shape
                ``[sequences]``. None: all of them.
            ancestors: tree-attention mask: bit ``i`` is set if the query sees query ``i`` of its
                sequence (itself included) in a draft tree whose nodes come after their ancestors,
                int64, shape ``[sequences * width]``; its position is offset by its number of
                ancestors. None: causal.
            splits: most parts into which a context is split; see ``splits.num_splits``.
            scratch: for partial results, float32, at least ``splits.scratch_size``; None if
                ``splits`` is 1 and nothing is shared.
            shared: pages of a prefix that all sequences share, with ``width`` 1 and no window; None
                if there is none. Padding sequences, which do not have the prefix, get meaningless
                results.
            chunked: see ``AttentionShape``.
        """

    def prompt_attention(
        self,
        query: torch.Tensor,
        keys_values: torch.Tensor,
        query_indptr: torch.Tensor,
        page_indptr: torch.Tensor,
        pages: torch.Tensor,
        last_page_len: torch.Tensor,
        out: torch.Tensor,
        *,
        scale: float,
        softcap: float | None,
        window: int,
        sinks: torch.Tensor | None,
        first: int,
        most_queries: int,
        chunked: bool = False,
    ) -> None:
        """Compute paged causal attention of the last tokens of sequences, any number of each.

        Args:
            query: queries of all sequences, one sequence after another, shape
                ``[num_tokens, num_heads, head_dim]``.
            keys_values: see ``decode_attention``.
            query_indptr: where each sequence's queries begin, int32, shape ``[sequences + 1]``.
            page_indptr: see ``decode_attention``.
            pages: see there.
            last_page_len: see there.
            out: receives the outputs, shape ``[num_tokens, num_heads, value_dim]``; rows of other
                sequences stay as they are.
            scale: see ``decode_attention``.
            softcap: see there.
            window: see there.
            sinks: see there.
            first: sequence from which on they attend.
            most_queries: most queries of one of them.
            chunked: see ``AttentionShape``.
        """

    def scale_by_sinks(self, out: torch.Tensor, lse: torch.Tensor, sinks: torch.Tensor) -> None:
        """Turn the output of attention without sinks into that with them, in place.

        Args:
            out: attended values, shape ``[tokens, num_heads, head_dim]``; contiguous.
            lse: log2-sum-exp2 of the scores of each token and head, float32, shape
                ``[tokens, num_heads]``; contiguous.
            sinks: see ``decode_attention``.
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
        """Build the inputs of a step from the uploaded tables and the state of the rows.

        Nothing is written beyond the last sequence's tokens and pages.

        Args:
            rows: row of each sequence, int32, shape ``[sequences]``.
            query_indptr: where each sequence's tokens begin, int32, shape ``[sequences + 1]``.
            page_indptr: where each sequence's pages begin, int32, shape ``[sequences + 1]``.
            starts: position of each sequence's first token, int32, shape ``[sequences]``.
            given: token ids, -1 for the last token of the sequence's row, int32, shape
                ``[num_tokens]``.
            last_tokens: int32 or int64, shape ``[rows]``.
            block_table: int32, shape ``[rows, max_pages]``.
            page_size: tokens per page.
            max_tokens: most tokens of any sequence; 1 if all decode.
            ids: filled, int64, at least ``[num_tokens]``.
            positions: filled, int64, at least ``[num_tokens]``.
            write: filled with KV slots (page * page size + offset), int64, at least
                ``[num_tokens]``.
            pages: filled with the pages of one sequence after another, int32, at least
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
        """Sample a token from each row of logits.

        Temperature acts first, then top-k, then top-p on the tokens left by top-k, then min-p; ties
        with the least likely token kept are kept too. The sampled token depends on the logits, the
        row's parameters and the position, not on the rest of the batch. Filters are skipped where
        the largest logit is not finite.

        Args:
            logits: shape ``[n, vocab]``, minus infinity for forbidden tokens.
            rows: batch row that each row of logits belongs to, int32, shape ``[n]``.
            positions: positions of the sampled tokens, int32 or int64, shape ``[n]``.
            columns: sampling parameters by batch row.
            chosen: output, int32, shape ``[2, n]``: the tokens, then the bits of the largest
                logits; None to allocate new tensors.
            last_tokens: receives the sampled token at its batch row, int32, shape ``[rows]``; if
                several rows of logits share a batch row, any of theirs. None for none.

        Returns:
            The tokens, int32 ``[n]``, always valid ids; and the largest logits, float32 ``[n]``:
            NaN if any logit of the row is. Views of ``chosen`` if that is given.
        """

    def logprobs(
        self, logits: torch.Tensor, tokens: torch.Tensor, num_top: int
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Compute log-probabilities and ranks of sampled tokens, and the top log-probabilities.

        Args:
            logits: shape ``[n, vocab]``.
            tokens: sampled tokens, int32 or int64, shape ``[n]``.
            num_top: how many of the likeliest tokens to report.

        Returns:
            The sampled tokens' log-probabilities, float32 ``[n]``; their ranks, from 1, int32
            ``[n]``; log-probabilities of the likeliest tokens, in descending order, float32
            ``[n, num_top]``, and their ids, int64 ``[n, num_top]``.
        """

    def mask(self, logits: torch.Tensor, bitmask: torch.Tensor, lines: torch.Tensor) -> None:
        """Set the logits of forbidden tokens to minus infinity, in place.

        Args:
            logits: shape ``[n, vocab]``.
            bitmask: int32, shape ``[m, ceil(vocab / 32)]``; bit ``t % 32`` of word ``t // 32``
                is set if token ``t`` is allowed.
            lines: row of logits that each row of the mask applies to, int32 or int64 ``[m]``.
        """

    def penalise(
        self,
        logits: torch.Tensor,
        lines: torch.Tensor,
        rows: torch.Tensor,
        columns: PenaltyColumns,
    ) -> None:
        """Apply the repetition penalty, then frequency and presence penalties, in place.

        Args:
            logits: shape ``[n, vocab]``.
            lines: distinct rows of logits, int32 or int64, shape ``[m]``.
            rows: batch row of each, int32 or int64, shape ``[m]``; logits of batch rows without an
                entry in either table are left unchanged.
            columns: tokens that the batch rows have seen, and their penalties.
        """
