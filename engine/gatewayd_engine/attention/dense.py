"""Softmax attention over contiguous keys and values."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F

from gatewayd_engine.attention.windows import first_visible
from gatewayd_engine.model.attention_shape import AttentionShape


class SharedKeys(NamedTuple):
    """Keys and values of a prefix that several sequences share.

    Attributes:
        keys: transposed, shape ``[kv_heads, head_dim, num_tokens]``.
        values: shape ``[kv_heads, num_tokens, head_dim]``.
    """

    keys: torch.Tensor
    values: torch.Tensor


class DenseAttention:
    """Dense attention in the dtype of its inputs.

    Args:
        shape: attention shape of the model.
        dtype: dtype of queries, keys and values.
        device: device of queries, keys and values.
    """

    def __init__(self, shape: AttentionShape, dtype: torch.dtype, device: torch.device) -> None:
        self._shape = shape
        self._per_group = shape.num_heads // shape.num_kv_heads
        self._zero = torch.zeros(1, 1, 1, dtype=dtype, device=device)

    def lines(
        self,
        query: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        mask: torch.Tensor | None,
        shared: SharedKeys | None,
        seen: list[torch.Tensor] | None = None,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Attend a few tokens of each of several sequences.

        Query heads that share a KV head are folded into the query dimension, so that keys are not
        repeated.

        Args:
            query: shape ``[count * kv_heads, queries, head_dim]``.
            keys: transposed, shape ``[count * kv_heads, head_dim, length]``.
            values: shape ``[count * kv_heads, length, head_dim]``.
            mask: mask of a ``Group``; None where all positions are visible.
            shared: shared prefix before these keys and values, if there is one.
            seen: receives the attention weights, ``[count, kv_heads, queries, context]`` in memory
                order; with one token per sequence their shape is ``[count, num_heads, context]``.
            sinks: scores of the heads' attention sinks, ``[num_heads]``; None for none.

        Returns:
            The output, with as many numbers as the query, in its order.
        """
        if mask is None or mask.dim() == 3:
            scores = self._scores(query, keys, mask)
        else:
            scores = self._scores(query, keys, None)
            # In place, broadcast over KV heads and over the query heads that share one.
            by_token = (len(mask), self._shape.num_kv_heads, -1, self._per_group, scores.shape[-1])
            scores.view(by_token).add_(mask)
        if shared is not None:
            return self._with_shared(shared, query, scores, values, seen, sinks)
        weights = torch.softmax(scores, -1)
        if sinks is not None:
            by_head = (-1, self._shape.num_kv_heads, scores.shape[1] // self._per_group)
            with_sinks(weights.view(*by_head, self._per_group, scores.shape[2]), scores, sinks)
        if seen is not None:
            seen.append(weights.view(-1, self._shape.num_heads, weights.shape[-1]))
        return torch.bmm(weights, values)

    def chunk(
        self,
        query: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        mask: torch.Tensor | None,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Attend a prefill chunk: the last tokens of a sequence.

        Args:
            query: shape ``[tokens, num_heads, head_dim]``.
            keys: shape ``[kv_heads, length, head_dim]``.
            values: of the same shape.
            mask: additive, shape ``[tokens, length]``, or ``[kv_heads, 1, tokens, length]``; None
                for causal attention of all tokens of a sequence.
            sinks: see ``lines``.

        Returns:
            Shape ``[tokens, num_heads, head_dim]``.
        """
        count, kv_heads, dim = len(query), len(keys), query.shape[-1]
        q = query.reshape(count, kv_heads, -1, dim).permute(1, 2, 0, 3)
        each = (kv_heads, self._per_group, keys.shape[1], dim)
        # Views: keys are not repeated for each query head.
        k, v = keys.unsqueeze(1).expand(each), values.unsqueeze(1).expand(each)
        answer = self._attend(q, k, v, mask, sinks)
        return answer.permute(2, 0, 1, 3).reshape(count, -1, dim)

    def _attend(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        mask: torch.Tensor | None,
        sinks: torch.Tensor | None,
    ) -> torch.Tensor:
        """Compute attention, causal without ``mask``. Shapes ``[b, heads, tokens, dim]``."""
        if self._shape.softcap is None and sinks is None:
            return F.scaled_dot_product_attention(
                q, k, v, attn_mask=mask, is_causal=mask is None, scale=self._shape.scale
            )
        scores = torch.matmul(q, k.transpose(-1, -2))
        scores = (
            scores.mul_(self._shape.scale) if self._shape.softcap is None else self._cap(scores)
        )
        if mask is None:
            mask = causal(q.shape[2], k.shape[2], 0, q.dtype, q.device)
        weights = torch.softmax(scores.add_(mask), -1)
        if sinks is not None:
            by_token = weights.transpose(1, 2).unsqueeze(0)
            with_sinks(by_token, scores.transpose(1, 2), sinks)
        return torch.matmul(weights, v)

    def _with_shared(
        self,
        shared: SharedKeys,
        query: torch.Tensor,
        scores: torch.Tensor,
        values: torch.Tensor,
        seen: list[torch.Tensor] | None,
        sinks: torch.Tensor | None,
    ) -> torch.Tensor:
        """Attend to a shared prefix as well, with the queries of all sequences in one product.

        ``scores`` are those of the tokens after it, shape ``[count * kv_heads, queries, length]``;
        the output has the shape ``[count, kv_heads, queries, head_dim]``.
        """
        kv_heads, queries, dim = self._shape.num_kv_heads, query.shape[1], query.shape[2]
        count, num_shared = len(query) // kv_heads, shared.values.shape[1]
        by_head = (kv_heads, count * queries, -1)
        by_line = (count, kv_heads, queries, -1)
        # [kv_heads, count * queries, dim]: the prefix is read once per KV head for all sequences.
        q = query.view(by_line).transpose(0, 1).reshape(by_head)
        own = scores.view(by_line).transpose(0, 1).reshape(by_head)
        # One softmax over both parts, so partial results need no rescaling.
        both = torch.cat((self._scores(q, shared.keys, None), own), -1)
        weights = torch.softmax(both, -1)
        if sinks is not None:
            grouped = weights.view(1, kv_heads, -1, self._per_group, both.shape[2])
            with_sinks(grouped, both, sinks)
        if seen is not None:
            by_own = torch.unflatten(weights, 1, (count, -1)).transpose(0, 1)
            seen.append(by_own.reshape(count, -1, weights.shape[-1]))
        answer = torch.bmm(weights[..., :num_shared], shared.values)
        own = torch.unflatten(weights[..., num_shared:], 1, (count, -1)).transpose(0, 1)
        follows = torch.bmm(own.reshape(scores.shape), values).view(by_line)
        return follows.add_(answer.view(kv_heads, count, -1, dim).transpose(0, 1))

    def _scores(
        self, query: torch.Tensor, keys: torch.Tensor, mask: torch.Tensor | None
    ) -> torch.Tensor:
        """Compute scaled, capped and masked scores.

        Shapes ``[b, q, dim]``, ``[b, dim, k]``, ``[b, 1, k]``.
        """
        if self._shape.softcap is not None:
            scores = self._cap(torch.bmm(query, keys))
            return scores if mask is None else scores.add_(mask)
        if mask is None:
            # Scale and product in one operation; with beta 0 the first operand is ignored.
            return torch.baddbmm(self._zero, query, keys, beta=0, alpha=self._shape.scale)
        # Scale, product and mask in one operation.
        return torch.baddbmm(mask, query, keys, alpha=self._shape.scale)

    def _cap(self, scores: torch.Tensor) -> torch.Tensor:
        """Scale raw scores and apply the softcap, in place."""
        softcap = self._shape.softcap or 1.0
        return scores.mul_(self._shape.scale / softcap).tanh_().mul_(softcap)


def with_sinks(weights: torch.Tensor, scores: torch.Tensor, sinks: torch.Tensor) -> None:
    """Let attention weights share their sum of one with a sink of each head, in place.

    Args:
        weights: softmax of ``scores``, shape ``[count, kv_heads, tokens, per_group, length]``.
        scores: before softmax, as many, in the same order.
        sinks: score of each head's sink, which no value follows, shape ``[num_heads]``.
    """
    total = torch.logsumexp(scores, -1, keepdim=True).reshape(*weights.shape[:-1], 1)
    by_group = sinks.to(scores.dtype).view(1, weights.shape[1], 1, weights.shape[3], 1)
    weights.mul_(torch.sigmoid(total - by_group))


def causal(
    queries: int,
    length: int,
    window: int,
    dtype: torch.dtype,
    device: torch.device,
    *,
    chunked: bool = False,
) -> torch.Tensor:
    """Return the causal additive mask of a context's last positions, ``[queries, length]``."""
    at = torch.arange(length, device=device)
    now = torch.arange(length - queries, length, device=device).unsqueeze(-1)
    hidden = at > now
    if window:
        hidden |= at < first_visible(now, window, chunked=chunked)
    mask = torch.zeros(queries, length, dtype=dtype, device=device)
    return mask.masked_fill_(hidden, -torch.inf)
